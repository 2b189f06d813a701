package fleet

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// The defaults of [Options].
const (
	DefaultMissedHeartbeats = 2
	DefaultForgetAfter      = 7 * 24 * time.Hour
	DefaultMaxStatuses      = 100_000
	DefaultPollFresh        = 30 * time.Minute
	DefaultPollOtherwise    = time.Minute
	DefaultPendingTooLong   = time.Minute
	DefaultExpiringWithin   = 24 * time.Hour
	DefaultResyncJitter     = 2 * time.Second
	DefaultResyncsPerSecond = 100
)

// Options are the optional settings of a [Fleet]. The zero value is the documented default.
type Options struct {
	// MissedHeartbeats is how many intervals a runtime may be silent before it is stale. Default [DefaultMissedHeartbeats].
	MissedHeartbeats int
	// ForgetAfter is the silence after which a runtime is forgotten, once it is not fresh any more. Default [DefaultForgetAfter].
	ForgetAfter time.Duration
	// MaxStatuses bounds the pairs of runtime and manager that are known. Further ones stay unknown. Default [DefaultMaxStatuses].
	MaxStatuses int

	// PollFresh and PollOtherwise are what RequeueAfter returns, give or take a tenth. Defaults [DefaultPollFresh] and
	// [DefaultPollOtherwise].
	PollFresh     time.Duration
	PollOtherwise time.Duration

	// PendingTooLong is the age of the oldest pending event from which on a runtime is degraded. Default [DefaultPendingTooLong].
	PendingTooLong time.Duration
	// ExpiringWithin is the rest of a client certificate's life from which on a runtime is degraded. Default
	// [DefaultExpiringWithin].
	ExpiringWithin time.Duration

	// ResyncJitter spreads the resyncs that the fleet asks for, each at random within it. Default [DefaultResyncJitter].
	ResyncJitter time.Duration
	// ResyncsPerSecond bounds them over all runtimes, for each manager. Default [DefaultResyncsPerSecond].
	ResyncsPerSecond int

	// Random returns numbers in [0, 1), concurrently. Default [rand.Float64].
	Random func() float64
	// Hooks are called for metrics.
	Hooks Hooks
	// Logger gets a line when the freshness of a runtime changes, and for each resync. Default: discarded.
	Logger *slog.Logger
}

// Hooks are optional callbacks of a fleet, called concurrently: they must return at once.
type Hooks struct {
	// Resynced is called when a resync that the fleet asked for was delivered, with its reason.
	Resynced func(manager core.Manager, reason string)
	// Untracked is called when a runtime is not tracked because [Options.MaxStatuses] is reached.
	Untracked func(manager core.Manager)
}

func (o Options) withDefaults() Options {
	o.MissedHeartbeats = cmp.Or(o.MissedHeartbeats, DefaultMissedHeartbeats)
	o.ForgetAfter = cmp.Or(o.ForgetAfter, DefaultForgetAfter)
	o.MaxStatuses = cmp.Or(o.MaxStatuses, DefaultMaxStatuses)
	o.PollFresh = cmp.Or(o.PollFresh, DefaultPollFresh)
	o.PollOtherwise = cmp.Or(o.PollOtherwise, DefaultPollOtherwise)
	o.PendingTooLong = cmp.Or(o.PendingTooLong, DefaultPendingTooLong)
	o.ExpiringWithin = cmp.Or(o.ExpiringWithin, DefaultExpiringWithin)
	o.ResyncJitter = cmp.Or(o.ResyncJitter, DefaultResyncJitter)
	o.ResyncsPerSecond = cmp.Or(o.ResyncsPerSecond, DefaultResyncsPerSecond)

	if o.Random == nil {
		o.Random = rand.Float64
	}

	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}

	return o
}

func (o Options) validate() error {
	for name, value := range map[string]int64{
		"MissedHeartbeats": int64(o.MissedHeartbeats), "ForgetAfter": int64(o.ForgetAfter), "MaxStatuses": int64(o.MaxStatuses),
		"PollFresh": int64(o.PollFresh), "PollOtherwise": int64(o.PollOtherwise), "PendingTooLong": int64(o.PendingTooLong),
		"ExpiringWithin": int64(o.ExpiringWithin), "ResyncJitter": int64(o.ResyncJitter), "ResyncsPerSecond": int64(o.ResyncsPerSecond),
	} {
		if value < 0 {
			return fmt.Errorf("fleet: option %s is negative, want more than 0", name)
		}
	}

	return nil
}
