package certificates

import (
	"cmp"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// Confirmations is the port through which runtimes say which CAs they trust.
//
// Unconfirmed returns those of the runtimes that have not said that they trust the CA with that fingerprint (SHA-256 of its
// DER bytes in lower case hex). In doubt it returns a runtime: a server certificate of a CA that it does not trust cuts it
// off. It returns at once, and must not change what it is given.
type Confirmations interface {
	Unconfirmed(fingerprint string, runtimes []core.RuntimeID) []core.RuntimeID
}

// ConfirmationsFunc makes a function [Confirmations].
type ConfirmationsFunc func(fingerprint string, runtimes []core.RuntimeID) []core.RuntimeID

// Unconfirmed calls f.
func (f ConfirmationsFunc) Unconfirmed(fingerprint string, runtimes []core.RuntimeID) []core.RuntimeID {
	return f(fingerprint, runtimes)
}

// DefaultWarmUp is two of an agent's usual heartbeats, and some.
const DefaultWarmUp = 90 * time.Second

// FleetOptions are the optional settings of [FromFleet]. The zero value is the documented default.
type FleetOptions struct {
	// WarmUp is how long a runtime is not believed after it was first heard, or heard again, as one replica of an agent may be heard before the
	// other: when the process starts, or a standby takes the lead. Default [DefaultWarmUp].
	WarmUp time.Duration
	// Now is the clock. Default [time.Now].
	Now func() time.Time
}

// FromFleet lets heartbeats confirm. A runtime has confirmed a CA when it was heard, and each of its replicas that is heard
// trusts the CA. A runtime that the fleet does not know has not.
func FromFleet(f *fleet.Fleet, opts FleetOptions) Confirmations {
	if opts.Now == nil {
		opts.Now = time.Now
	}

	warmUp := cmp.Or(opts.WarmUp, DefaultWarmUp)

	return ConfirmationsFunc(func(fingerprint string, runtimes []core.RuntimeID) []core.RuntimeID {
		return unconfirmed(f, fingerprint, runtimes, opts.Now().Add(-warmUp))
	})
}

// unconfirmed believes those that have been heard as they are since then.
func unconfirmed(f *fleet.Fleet, fingerprint string, runtimes []core.RuntimeID, since time.Time) []core.RuntimeID {
	heard := make(map[core.RuntimeID]bool)

	f.Range(func(s fleet.Status) bool {
		if len(s.Replicas) > 0 && !s.Since.After(since) {
			heard[s.Runtime] = true
		}

		return true
	})

	for _, id := range f.WithoutCA(fingerprint) {
		heard[id] = false
	}

	return slices.DeleteFunc(slices.Clone(runtimes), func(id core.RuntimeID) bool { return heard[id] })
}
