package listener

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// handleResync hands a resync that the fleet asks for to the handler of its manager. The fleet tries again after an error.
func (l *Listener) handleResync(ctx context.Context, d core.Delivery) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: %v", errPanic, cause)
			l.opts.Logger.LogAttrs(ctx, slog.LevelError, "panic while a resync was handled",
				slog.Any("error", err), slog.String("stack", string(debug.Stack())))
		}
	}()

	handler := l.handlers[d.Manager]
	if handler == nil {
		return fmt.Errorf("%w: manager %q is that of another listener that feeds the same fleet", core.ErrNotReady, d.Manager)
	}

	return handler.Handle(ctx, d) //nolint:wrapcheck // The fleet logs it as it is.
}

// FleetHandler shows the freshness of all runtimes as JSON, to GET requests: how many are in which state, and each that the query asks
// for with state, manager and runtime (every one, when it asks for nothing). It asks for no credentials: it belongs on a port
// for operators.
func FleetHandler(f *fleet.Fleet) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(survey(f, r)) // If the reader has gone, there is nobody to tell.
	})

	return mux
}

type fleetView struct {
	Counts   []fleetCount   `json:"counts"`
	Runtimes []fleet.Status `json:"runtimes"`
}

type fleetCount struct {
	Manager core.Manager `json:"manager"`
	State   fleet.State  `json:"state"`
	Reason  string       `json:"reason,omitempty"`
	Count   int          `json:"count"`
}

func survey(f *fleet.Fleet, r *http.Request) fleetView {
	query := r.URL.Query()
	asked := func(name, value string) bool { return !query.Has(name) || query.Get(name) == value }
	view := fleetView{Counts: []fleetCount{}, Runtimes: []fleet.Status{}}

	for group, n := range f.Counts() {
		view.Counts = append(view.Counts, fleetCount{Manager: group.Manager, State: group.State, Reason: group.Reason, Count: n})
	}

	f.Range(func(s fleet.Status) bool {
		if asked("state", string(s.State)) && asked("manager", string(s.Manager)) && asked("runtime", string(s.Runtime)) {
			view.Runtimes = append(view.Runtimes, s)
		}

		return true
	})

	slices.SortFunc(view.Counts, func(a, b fleetCount) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	slices.SortFunc(view.Runtimes, func(a, b fleet.Status) int {
		return cmp.Or(cmp.Compare(a.Runtime, b.Runtime), cmp.Compare(a.Manager, b.Manager))
	})

	return view
}
