package certificates

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

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
