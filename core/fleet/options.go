package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

const (
	// missedHeartbeats is the number of intervals for which a runtime may be silent before it is
	// stale.
	missedHeartbeats        = 2
	defaultForgetAfter      = 7 * 24 * time.Hour
	defaultMaxStatuses      = 100_000
	defaultPollFresh        = 30 * time.Minute
	defaultPollUnproved     = 5 * time.Minute
	defaultPollOtherwise    = time.Minute
	defaultPendingTooLong   = time.Minute
	defaultResyncJitter     = 2 * time.Second
	defaultResyncsPerSecond = 100
)

// Options are the optional settings of a [Fleet]. The zero value is the documented default.
type Options struct {
	// ForgetAfter is the silence after which a stale or unknown runtime is forgotten, unless
	// [Fleet.Expect] was called for it. Default: 7 days.
	ForgetAfter time.Duration
	// MaxStatuses bounds the pairs of runtime and manager. Further ones stay unknown. Default:
	// 100,000.
	MaxStatuses int

	// PollFresh, PollUnproved and PollOtherwise are the intervals of [Fleet.RequeueAfter].
	// None may be longer than the one before. Defaults: 30 min, 5 min and 1 min, or the one before
	// if that is shorter.
	PollFresh     time.Duration
	PollUnproved  time.Duration
	PollOtherwise time.Duration

	// PendingTooLong is the age of the oldest pending event above which a runtime is degraded.
	// Default: 1 min.
	PendingTooLong time.Duration

	// ResyncJitter spreads the resyncs of the fleet, each at random within it. Default: 2 s.
	ResyncJitter time.Duration
	// ResyncsPerSecond bounds the resyncs of the fleet for each manager. Default: 100.
	ResyncsPerSecond int

	// Random returns numbers in [0, 1), concurrently. Default: [rand.Float64].
	Random func() float64
	// Resynced is called when a resync of the fleet was delivered, with its cause. It is called
	// concurrently, and must return at once. Default: none.
	Resynced func(manager core.Manager, cause string)
	// Logger gets a line when the freshness of a runtime changes, at most 20 in 10 s. The level is
	// warn for stale and degraded, and info for the others. Each resync is a line at debug. Nil
	// discards.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	o.ForgetAfter = cmp.Or(o.ForgetAfter, defaultForgetAfter)
	o.MaxStatuses = cmp.Or(o.MaxStatuses, defaultMaxStatuses)
	o.PollFresh = cmp.Or(o.PollFresh, defaultPollFresh)
	o.PollUnproved = cmp.Or(o.PollUnproved, min(defaultPollUnproved, o.PollFresh))
	o.PollOtherwise = cmp.Or(o.PollOtherwise, min(defaultPollOtherwise, o.PollUnproved))
	o.PendingTooLong = cmp.Or(o.PendingTooLong, defaultPendingTooLong)
	o.ResyncJitter = cmp.Or(o.ResyncJitter, defaultResyncJitter)
	o.ResyncsPerSecond = cmp.Or(o.ResyncsPerSecond, defaultResyncsPerSecond)

	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))

	if o.Random == nil {
		o.Random = rand.Float64
	}

	return o
}

func (o Options) validate() error {
	set := o.withDefaults()
	return errors.Join(
		option.NotNegative("Options.ForgetAfter", o.ForgetAfter),
		option.NotNegative("Options.MaxStatuses", o.MaxStatuses),
		option.NotNegative("Options.PollFresh", o.PollFresh),
		option.NotNegative("Options.PollUnproved", o.PollUnproved),
		option.NotNegative("Options.PollOtherwise", o.PollOtherwise),
		option.NotNegative("Options.PendingTooLong", o.PendingTooLong),
		option.NotNegative("Options.ResyncJitter", o.ResyncJitter),
		option.NotNegative("Options.ResyncsPerSecond", o.ResyncsPerSecond),
		notLonger("PollUnproved", set.PollUnproved, "PollFresh", set.PollFresh),
		notLonger("PollOtherwise", set.PollOtherwise, "PollUnproved", set.PollUnproved),
	)
}

// notLonger refuses intervals by which a runtime is polled less often the less is known of it.
func notLonger(name string, value time.Duration, than string, most time.Duration) error {
	if value <= most || most < 0 {
		return nil
	}
	return fmt.Errorf("fleet: option %s is %v, want at most %s, which is %v", name, value, than, most)
}
