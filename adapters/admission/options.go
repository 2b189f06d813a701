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
	// because the underlying bytes are reused. If Filter panics, the change counts as relevant.
	// Filter is not called for dry-run writes, because they are never persisted. Default:
	// [core.Changed].
	Filter core.Filter
	// Serves reports whether the handler accepts reviews for a manager. Reviews for any other
	// manager are answered with 404. Serves is called for each review, concurrently, and must
	// return immediately. Hooks receive only managers that Serves accepts, so Serves also limits
	// the label values of metrics. Default: every valid name.
	Serves func(core.Manager) bool
	// OwnerAnnotation is the annotation that names the owner of an object. It must equal
	// OwnerAnnotation of the [ConfigurationOptions]. Default: [core.OwnerAnnotation].
	OwnerAnnotation string
	// RequireOwner sends no event for an object without a valid owner annotation. Contract v1
	// cannot carry such an event. Default: false, the event has no owner.
	RequireOwner bool
	// MaxBody is the largest size of a body in bytes. A larger body is answered with 413. Default:
	// 8 MiB.
	MaxBody int64
	// MaxBodies bounds the memory of all bodies in bytes, including buffers that are kept for later
	// bodies. A value below 5/4 of MaxBody is raised to 5/4 of MaxBody. An origin is an IPv4
	// address or an IPv6 /64 network. Each origin gets at most four fifths of the bytes that other
	// origins leave.
	//
	// A body waits at most 250 ms for memory. After that the body is not read: the handler allows
	// the write and accepts a resync of the manager. Default: 64 MiB.
	MaxBodies int64
	// Now is the clock. It is called concurrently. Default: [time.Now].
	Now func() time.Time
	// Logger gets one debug line for each review, warnings, and panics as errors. Each kind of
	// warning is logged at most once a minute. The names of objects are logged, but never their
	// content. Default: discarded.
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
