package natsjetstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// standing is the number of failures in a row from which on a stream counts as unavailable. The
// first one may be the election of a leader for the stream. An attempt follows each second.
const standing = 2

// outage has the failures to take the messages of one manager. One goroutine uses it.
type outage struct {
	*Consumer

	manager core.Manager
	// reason is that of the last failure, "" after a success.
	reason core.Reason
	// failures are those in a row.
	failures int
}

// noteFailure notes a failure. It logs one that has another reason than the last.
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
	o.opts.Logger.InfoContext(ctx, "messages from the stream again", slog.String("manager", string(o.manager)))
}

// clearFailures ends the outage. It is also called when another replica takes the messages.
func (o *outage) clearFailures() {
	o.reason = ""
	o.failures = 0
	if o.problems.clearProblem(o.manager) {
		o.opts.Hooks.Unavailable(hook.Unavailability{Manager: o.manager})
	}
}

// problems has the failure of each manager with messages that cannot be taken. It is safe for
// concurrent use.
type problems struct {
	mu sync.Mutex
	of map[core.Manager]error
}

// setProblem reports whether a problem began, or has another reason than before.
func (p *problems) setProblem(manager core.Manager, err error) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	before, had := p.of[manager]
	if p.of == nil {
		p.of = map[core.Manager]error{}
	}

	p.of[manager] = err
	return !had || core.ReasonOf(classify("", before)) != core.ReasonOf(classify("", err))
}

// clearProblem reports whether there was a problem.
func (p *problems) clearProblem(manager core.Manager) (had bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	_, had = p.of[manager]
	delete(p.of, manager)
	return had
}

// asError names the problem of each manager, in the words of the server.
func (p *problems) asError() error {
	p.mu.Lock()
	defer p.mu.Unlock()

	var all []error
	for _, manager := range slices.Sorted(maps.Keys(p.of)) {
		all = append(all, fmt.Errorf("no messages for %s: %w", manager, p.of[manager]))
	}

	return errors.Join(all...)
}

// errSubject is of a stream that does not take the messages of its manager, as another program has
// changed its subjects.
var errSubject = errors.New("the stream does not accept the subject of its manager")

// checkSubjects returns errSubject for a stream without the subject of a manager. A stream that is
// fed by another one may have no subjects.
func checkSubjects(config *jetstream.StreamConfig, manager core.Manager) error {
	if config.Mirror != nil || len(config.Sources) > 0 {
		return nil
	}

	want := subjects(manager)
	for _, subject := range config.Subjects {
		if covers(subject, want) {
			return nil
		}
	}
	return fmt.Errorf("%w: it has %.200q, want %s", errSubject, strings.Join(config.Subjects, " "), want)
}

// covers reports whether a subject with wildcards includes another one.
func covers(subject, other string) bool {
	wide := strings.Split(subject, ".")
	narrow := strings.Split(other, ".")
	for i, token := range wide {
		switch {
		case token == ">":
			return i < len(narrow)
		case i == len(narrow):
			return false
		case token != "*" && token != narrow[i]:
			return false
		}
	}
	return len(wide) == len(narrow)
}
