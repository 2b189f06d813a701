package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Options are the optional settings of a [Fleet]. The zero value is the documented default.
type Options struct {
	// ForgetAfter is the duration of silence after which a stale or unknown runtime is forgotten,
	// unless [Fleet.Expect] was called for the runtime. Default: 7 days.
	ForgetAfter time.Duration
	// MaxStatuses bounds the number of pairs of runtime and manager. Further pairs stay unknown.
	// Default: 100,000.
	MaxStatuses int

	// PollFresh, PollUnproved and PollOtherwise are the intervals of [Fleet.RequeueAfter].
	// None may be longer than the interval above. Defaults: 30 min, 5 min and 1 min, or the
	// interval above if it is shorter.
	PollFresh     time.Duration
	PollUnproved  time.Duration
	PollOtherwise time.Duration

	// PendingTooLong is the age of the oldest pending event above which a runtime is degraded.
	// Default: 1 min.
	PendingTooLong time.Duration

	// ResyncJitter spreads the resyncs of the fleet: each resync is delayed by a random time within
	// it. Default: 2 s.
	ResyncJitter time.Duration
	// ResyncsPerSecond bounds the resyncs of the fleet for each manager. Default: 100.
	ResyncsPerSecond int

	// Random returns a random number in [0, 1). It is called concurrently. Default: [rand.Float64].
	Random func() float64
	// Resynced is called after a resync of the fleet was delivered. It is called concurrently and
	// must return immediately. Default: none.
	Resynced func(hook.Resync)
	// Logger gets a line when the freshness of a runtime changes. In 10 s, it gets at most one line
	// for each repeated change and about 100 lines in total. The level is warn for stale and
	// degraded, and info for all other states. Each resync is logged at debug. Nil discards.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	o.PollFresh = cmp.Or(o.PollFresh, 30*time.Minute)
	o.PollUnproved = cmp.Or(o.PollUnproved, min(5*time.Minute, o.PollFresh))
	return option.WithDefaults(o, Options{
		ForgetAfter:      7 * 24 * time.Hour,
		MaxStatuses:      100_000,
		PollOtherwise:    min(time.Minute, o.PollUnproved),
		PendingTooLong:   time.Minute,
		ResyncJitter:     2 * time.Second,
		ResyncsPerSecond: 100,
		Random:           rand.Float64,
		Logger:           slog.New(slog.DiscardHandler),
	})
}

func (o Options) validate() error {
	set := o.withDefaults()
	return errors.Join(
		option.NoneNegative(o),
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
