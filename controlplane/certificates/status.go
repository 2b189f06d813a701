package certificates

import (
	"fmt"
	"slices"
	"strings"
	"time"

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
