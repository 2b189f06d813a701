package informer

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

// The reasons of a [hook.WatchFailure], in addition to the reasons of package core for an answer of
// the API server: [core.ReasonUnauthenticated], [core.ReasonForbidden], [core.ReasonNotFound],
// [core.ReasonBusy] and [core.ReasonOther].
const (
	// ReasonEndlessList means that the API server treats a streaming watch as an ordinary watch and
	// never marks the end of its list. The objects are then listed without streaming.
	ReasonEndlessList core.Reason = "endless_list"
	// ReasonUnreachable means that there is no answer, or that the answer stops.
	ReasonUnreachable core.Reason = "unreachable"
)

const logEvery = 5 * time.Minute

// health contains the problems of all watches. It may be used concurrently.
type health struct {
	opts *Options

	mu sync.Mutex
	// watches are complete when New ends.
	watches []*condition
}

type condition struct {
	watch *watched
	// problem is why it does not, "" if it does. It needs the lock of [health].
	problem string
	// log gets the failures until the watch works. It needs that lock, too.
	log *slog.Logger
}

const notYet = "not established yet"

func (h *health) addWatch(w *watched) *condition {
	c := &condition{watch: w, problem: notYet, log: h.newLog()}
	h.watches = append(h.watches, c)
	return c
}

func (h *health) newLog() *slog.Logger { return pacedlog.New(h.opts.Logger, logEvery, "error") }

func (h *health) noteSuccess(c *condition) {
	manager := c.watch.Manager
	h.opts.Hooks.Proved(hook.Proof{Manager: manager})

	before, _ := h.setProblem(c, "")
	if before != "" {
		h.opts.Logger.Info("watch is established", slog.String("watch", c.watch.name),
			slog.String("manager", string(manager)), slog.String("before", before))
	}
}

// setProblem returns the problem before, and the log of failures.
func (h *health) setProblem(c *condition, problem string) (before string, log *slog.Logger) {
	h.mu.Lock()
	defer h.mu.Unlock()

	before = c.problem
	c.problem = problem
	if problem == "" && before != "" {
		c.log = h.newLog() // The next failure is logged immediately.
	}

	return before, c.log
}

func (h *health) noteFailure(c *condition, err error) {
	manager := c.watch.Manager
	h.opts.Hooks.Failed(hook.WatchFailure{Manager: manager, Reason: reasonOf(err)})

	if request, ok := errors.AsType[*url.Error](err); ok {
		err = request.Err // The URL has another timeout each time, so that each line would be a new one.
	}

	_, log := h.setProblem(c, err.Error())
	log.Warn("cannot establish a watch, so changes are missed: "+
		"check the error, the rights of the agent and the definition of the resource",
		slog.String("watch", c.watch.name), slog.String("manager", string(manager)),
		slog.String("resource", c.watch.Resource.String()), slog.Any("error", err))
}

func (h *health) problemsOf(match func(*condition) bool) string {
	h.mu.Lock()
	defer h.mu.Unlock()

	var problems []string
	for _, c := range h.watches {
		if c.problem != "" && match(c) {
			problems = append(problems, c.String())
		}
	}

	return strings.Join(problems, "; ")
}

func (c *condition) String() string {
	return fmt.Sprintf("watch %s of %s: %s", c.watch.name, c.watch.Resource.GroupResource(), c.problem)
}

func reasonOf(err error) core.Reason {
	switch {
	case errors.Is(err, errEndless):
		return ReasonEndlessList
	case errors.Is(err, errNoProgress):
		return ReasonUnreachable
	case apierrors.IsUnauthorized(err):
		return core.ReasonUnauthenticated
	case apierrors.IsForbidden(err):
		return core.ReasonForbidden
	case apierrors.IsNotFound(err):
		return core.ReasonNotFound
	case apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err):
		return core.ReasonBusy
	case apierrors.ReasonForError(err) == "":
		return ReasonUnreachable
	default:
		return core.ReasonOther
	}
}
