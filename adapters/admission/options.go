package admission

import (
	"log/slog"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Options are the optional settings of a handler. The zero value is the documented default.
type Options struct {
	// Filter decides which changes matter. It is called concurrently. It must not keep the change,
	// because the bytes behind it are reused. A change on which it panics matters. Dry-run writes
	// are never filtered, because they are never persisted. Default: [core.Changed].
	Filter core.Filter
	// Serves reports whether reviews of a manager are taken. Others are answered 404. It is called
	// for each review, concurrently, and must return at once. Managers that it serves also bound
	// the label values of the hooks. Default: every valid name.
	Serves func(core.Manager) bool
	// OwnerAnnotation is the annotation that names the owner of an object. It must equal that of
	// the [ConfigurationOptions]. Default: [core.OwnerAnnotation].
	OwnerAnnotation string
	// RequireOwner sends no event for an object without a valid owner annotation. Contract v1
	// cannot carry such an event. Default: false, the event has no owner.
	RequireOwner bool
	// MaxBody is the largest size of a body in bytes. A larger body is answered 413. Default: 8
	// MiB.
	MaxBody int64
	// MaxBodies bounds the memory of all bodies in bytes, with the buffers that are kept for the
	// next ones. Less than 5/4 of MaxBody counts as that. An origin is an IPv4 address or an IPv6
	// /64 network. It gets at most four fifths of the bytes that others leave.
	//
	// A body waits at most 250 ms for memory. After that it is not read: the write is allowed, and
	// a resync of the manager is accepted. Default: 64 MiB.
	MaxBodies int64
	// Now is the clock. It is called concurrently. Default: [time.Now].
	Now func() time.Time
	// Logger gets one debug line per review, warnings, and panics as errors. Each kind of warning
	// is logged at most once a minute. Names of objects are logged, their content never. Default:
	// discarded.
	Logger *slog.Logger
	// Hooks are callbacks for metrics. Default: none.
	Hooks Hooks
}

func (o Options) withDefaults() Options {
	return option.WithDefaults(o, Options{
		OwnerAnnotation: core.OwnerAnnotation,
		Filter:          core.Changed,
		Serves:          func(core.Manager) bool { return true },
		// An API server refuses requests above 3 MiB, and a review can carry such an object twice.
		MaxBody:   8 << 20,
		MaxBodies: 64 << 20, // 32 concurrent reviews of objects of 1 MB.
		Now:       time.Now,
		Logger:    slog.New(slog.DiscardHandler),
		Hooks: Hooks{
			InFlight:     func(int) {},
			Reviewed:     func(hook.Review) {},
			Refused:      func(hook.Refusal) {},
			OwnerProblem: func(hook.OwnerProblem) {},
			Panicked:     func(hook.Panic) {},
		},
	})
}
