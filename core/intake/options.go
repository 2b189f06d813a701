package intake

import (
	"log/slog"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Options are the optional settings of an [Intake]. The zero value is the documented default.
type Options struct {
	// MaxInFlight bounds the batches that the verifier and the handlers have at the same time. With
	// a Fleet, an eighth more may be with the verifier only, so that heartbeats are observed while
	// all events are refused. Default: 256.
	MaxInFlight int
	// RuntimeRate bounds the events of each runtime in a second on average, RuntimeBurst at once. A
	// batch without events counts as one event, and so does each 16 KiB of a body. A batch that is
	// larger than the rest of the share is taken, and the next one waits. Defaults: 200 and 1,000.
	RuntimeRate  float64
	RuntimeBurst int
	// RuntimeInFlight bounds the batches of one runtime in flight. Default: 16.
	RuntimeInFlight int
	// HandleTimeout bounds the calls of verifier and handler for one batch. Default: 5 s.
	HandleTimeout time.Duration
	// Fleet observes each batch that is verified. Default: none.
	Fleet *fleet.Fleet
	// Now is the clock. Default: [time.Now].
	Now func() time.Time
	// Logger gets panics. Default: discard.
	Logger *slog.Logger
	// InFlight is called with 1 before the verifier and the handler are called for a batch, and
	// with -1 after. Default: none.
	InFlight func(delta int)
}

func (o Options) withDefaults() Options {
	return option.WithDefaults(o, Options{
		MaxInFlight:     256,
		RuntimeRate:     200,
		RuntimeBurst:    1000,
		RuntimeInFlight: 16,
		HandleTimeout:   5 * time.Second,
		Now:             time.Now,
		Logger:          slog.New(slog.DiscardHandler),
		InFlight:        func(int) {},
	})
}
