package certificates

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// named is the largest number of runtimes in a message.
const named = 10

func message(s Status) string {
	switch s.Phase {
	case phaseBootstrap:
		return "waiting for cert-manager to issue the first certificates"
	case phaseCreating:
		return "waiting for cert-manager to issue the next CA"
	case phasePropagating:
		return fmt.Sprintf("CA %d is in the bundle, and signs once every listener has got it", s.Generation)
	case phaseReissuing:
		return fmt.Sprintf("CA %d signs for runtimes; %s yet to get their certificates of it: %s",
			s.Generation, count(s.Waiting), list(s.Waiting))
	case phaseConfirming:
		return fmt.Sprintf("the server certificate switches to CA %d once every runtime trusts it; "+
			"%s yet to confirm that: %s",
			s.Generation, count(s.Waiting), list(s.Waiting))
	case phaseSwitching, phaseRetiring:
		if len(s.Waiting) > 0 {
			return fmt.Sprintf("the server certificate switches to CA %d without waiting for %d runtimes: %s",
				s.Generation, len(s.Waiting), list(s.Waiting))
		}
		return fmt.Sprintf("the server certificate switches to CA %d", s.Generation)
	case phaseStable:
	}
	return fmt.Sprintf("CA %d signs everything", s.Generation)
}

// issuance is how long the first issuance of a certificate may take.
const issuance = 10 * time.Minute

// overdue returns the runtimes with a late certificate, each once. They are in order.
func overdue(v view, renewBefore time.Duration) (runtimes []core.RuntimeID) {
	const part = 10
	renewal := renewBefore - renewBefore/part
	for _, r := range v.runtimes {
		late := v.now.Sub(r.created) > issuance
		if r.present {
			late = v.now.After(r.notAfter.Add(-renewal))
		}
		if late {
			runtimes = append(runtimes, r.runtime)
		}
	}
	return slices.Compact(runtimes)
}

func count(runtimes []core.RuntimeID) string {
	if len(runtimes) == 1 {
		return "1 runtime has"
	}
	return fmt.Sprintf("%d runtimes have", len(runtimes))
}

func list(runtimes []core.RuntimeID) string {
	ids := make([]string, 0, named+1)
	for i, id := range runtimes {
		if i == named {
			ids = append(ids, "…")
			break
		}
		ids = append(ids, string(id))
	}
	return strings.Join(ids, ", ")
}

const (
	// noticeInterval is the shortest time between two notices about a rotation that waits.
	noticeInterval = 10 * time.Second
	// noticeReminder is the time after which an unchanged notice is repeated.
	noticeReminder = time.Hour
)

// announce logs that a rotation waits, and emits an Event. The message names some of the runtimes.
func (c *Certificates) announce(ctx context.Context, seen *observed, status Status) {
	if len(status.Waiting) == 0 || !c.notices.due(status.Message, c.opts.Now()) {
		return
	}
	c.opts.Logger.WarnContext(ctx, "rotation of the CA waits for runtimes",
		slog.String("phase", status.Phase), slog.Int("generation", status.Generation),
		slog.Int("waiting", len(status.Waiting)), slog.String("runtimes", list(status.Waiting)))
	if c.opts.Recorder != nil && seen.clientsIssuer != nil {
		c.opts.Recorder.Eventf(seen.clientsIssuer, nil, corev1.EventTypeWarning,
			"RotationWaits", status.Phase, "%s", status.Message)
	}
}

// notices decides when a notice is due. The zero value is ready.
type notices struct {
	mu   sync.Mutex
	last string
	at   time.Time
}

// due reports whether a notice is new, or old enough to be repeated, and notes it.
func (n *notices) due(notice string, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	since := now.Sub(n.at)
	if since < noticeInterval || n.last == notice && since < noticeReminder {
		return false
	}
	n.last, n.at = notice, now
	return true
}
