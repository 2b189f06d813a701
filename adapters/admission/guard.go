package admission

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// handler answers the reviews of an API server. Its fields do not change after New.
type handler struct {
	acceptor core.Acceptor
	opts     Options
	log      *slog.Logger
	mux      *http.ServeMux
	bodies   *bodies
	paced    *slog.Logger // for lines that others can cause
}

// guardCall recovers from a panic, so that the API server gets its answer. place is a label.
func (h *handler) guardCall(place hook.Place, f func()) {
	defer func() {
		if cause := recover(); cause != nil {
			h.notePanic(place, cause)
		}
	}()

	f()
}

// notePanic reports a panic. It never panics itself.
func (h *handler) notePanic(place hook.Place, cause any) {
	// The hook or the logger may be the cause of the panic.
	defer func() { _ = recover() }()
	h.log.Error("caught a panic", "place", string(place), "cause", fmt.Sprint(cause), "stack", string(debug.Stack()))
	h.opts.Hooks.Panicked(hook.Panic{Place: place})
}
