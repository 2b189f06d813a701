package agent

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// Outbox contains the optional settings of the outbox of an [Agent]. Each field has the same
// meaning as in [outbox.Options], which describes it in full. The agent decides all other options
// of its outbox.
type Outbox struct {
	// Settle is how long an event waits before it is sent. Default: 100 ms. Negative: none.
	Settle time.Duration
	// SettleChecked is how long an event waits instead of Settle if the receiver checks soon
	// afterwards whether a reconcile has read the change. Default: 10 ms. Negative: none.
	SettleChecked time.Duration
	// Resend contains the increasing delays after which a delivered event is sent once more.
	// Default: 3 s and 35 s. Empty but not nil: never.
	Resend []time.Duration
	// ResendResync is the delay after which a delivered resync is sent once more. Default: 35 s.
	// Negative: never.
	ResendResync time.Duration
	// ResendEvery is the interval at which resends are sent, unless another call carries them
	// earlier. Default: 1 s. Negative: each resend is sent when it is due.
	ResendEvery time.Duration
	// Gather is how long events wait after the start of a call, so that they are sent together.
	// Default: 50 ms. Negative: none.
	Gather time.Duration
	// GiveUpAfter is how long the outbox retries an event that the manager refuses. Default: 5 min.
	GiveUpAfter time.Duration
	// MaxKeys bounds the distinct events of all managers. Default: 10,000.
	MaxKeys int
	// MaxBytes bounds the memory of these events, in bytes. Default: 7 MiB.
	MaxBytes int
	// MaxManagers bounds the managers with events. Default: 100, or the number of Managers if that
	// is higher.
	MaxManagers int
	// InFlight bounds the concurrent calls of the transport for one manager. With contract v3 it
	// must be 0 or 1. Default: 8, or 1 with contract v3.
	InFlight int
	// ForwardTimeout bounds one call of the transport. Default: 10 s.
	ForwardTimeout time.Duration
	// MinBackoff and MaxBackoff bound the wait after consecutive failures. Defaults: 200 ms, 20 s.
	MinBackoff time.Duration
	MaxBackoff time.Duration
	// HeartbeatInterval is the longest time between two heartbeats to a manager, with contract v3.
	// Default: 30 s. Negative: none.
	HeartbeatInterval time.Duration
	// Random returns a random number in [0, 1). It is called concurrently. Default: rand.Float64.
	Random func() float64
}

func (o Outbox) options() outbox.Options {
	return outbox.Options{
		Settle:            o.Settle,
		SettleChecked:     o.SettleChecked,
		Resend:            o.Resend,
		ResendResync:      o.ResendResync,
		ResendEvery:       o.ResendEvery,
		Gather:            o.Gather,
		GiveUpAfter:       o.GiveUpAfter,
		MaxKeys:           o.MaxKeys,
		MaxBytes:          o.MaxBytes,
		MaxManagers:       o.MaxManagers,
		InFlight:          o.InFlight,
		ForwardTimeout:    o.ForwardTimeout,
		MinBackoff:        o.MinBackoff,
		MaxBackoff:        o.MaxBackoff,
		HeartbeatInterval: o.HeartbeatInterval,
		Random:            o.Random,
	}
}
