package natsjetstream

import (
	"context"
	"log/slog"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// standing is the number of failures in a row from which on a stream counts as unavailable. The
// first one may be the election of a leader for the stream. An attempt follows each second.
const standing = 2

// outage contains the failures to take the messages of one manager. One goroutine uses it.
type outage struct {
	*Consumer

	manager core.Manager
	// reason is the reason of the last failure, "" after a success.
	reason core.Reason
	// failures are those in a row.
	failures int
}

// noteFailure notes a failure. It logs a failure with a reason that differs from the last.
func (o *outage) noteFailure(ctx context.Context, err error) {
	reason := core.ReasonOf(classify("", err))
	o.failures++

	if o.failures >= standing && o.problems.setProblem(o.manager, err) {
		o.opts.Hooks.Unavailable(hook.Unavailability{Manager: o.manager, Reason: reason})
	}
	if reason == o.reason {
		return
	}

	o.reason = reason
	o.opts.Logger.WarnContext(ctx, "no messages from the stream, retrying",
		slog.String("manager", string(o.manager)), slog.Any("error", err))
}

// noteSuccess notes that messages can be taken.
func (o *outage) noteSuccess(ctx context.Context) {
	if o.reason == "" {
		return
	}

	o.clearFailures()
	o.opts.Logger.InfoContext(ctx, "the consumer receives messages from the stream again",
		slog.String("manager", string(o.manager)))
}

// clearFailures ends the outage. It is also called when another replica takes the messages.
func (o *outage) clearFailures() {
	o.reason = ""
	o.failures = 0
	if o.problems.clearProblem(o.manager) {
		o.opts.Hooks.Unavailable(hook.Unavailability{Manager: o.manager})
	}
}
