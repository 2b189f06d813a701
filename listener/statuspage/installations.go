package statuspage

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/installations"
)

// InstallationsHandler returns a handler that answers GET with the installations of a control plane
// in JSON. The JSON contains the number of runtimes in each state, the phase of the rotation of the
// CA, and the runtimes with a problem. Each request calls read, such as the method Installations of
// a runtimes.Overview. The handler answers with 403 unless [RequireToken] or [Authenticated] is in
// front of it. It answers with 503 while no installation is known, for example on a replica that
// does not lead.
//
// The query parameter problem selects failed, never_heard, ca_waiting or certificate_overdue.
// The parameters manager, reason and runtime select by value, and search by a part of the runtime's
// ID. The parameters offset and limit select a part of the answer, by default the first 100
// runtimes. In the answer, total is the number without them.
func InstallationsHandler(read func() installations.All) http.Handler {
	refuseNil("read", read)
	accepted := parameters{
		"problem": {problemFailed, problemNeverHeard, problemWaiting, problemOverdue},
		"manager": nil, "reason": nil, "runtime": nil, "search": nil, "limit": nil, "offset": nil,
	}

	return newHandler(accepted, func(w http.ResponseWriter, _ *http.Request, selected *selection) {
		all := read()
		if len(all.Runtimes) == 0 && all.Phase == "" {
			http.Error(w, "no installation is known here: this replica does not lead, or has just become the leader",
				http.StatusServiceUnavailable)
			return
		}

		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(newInstallationsView(&all, selected)) // A reader may be gone.
	})
}

const (
	problemFailed     = "failed"
	problemNeverHeard = "never_heard"
	problemWaiting    = "ca_waiting"
	problemOverdue    = "certificate_overdue"
)

const defaultProblems = 100

type installationsView struct {
	Counts   []installationCount `json:"counts"`
	Phase    string              `json:"phase,omitempty"`
	Total    int                 `json:"total"`
	Problems []runtimeProblem    `json:"problems"`
}

type installationCount struct {
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	Count  int    `json:"count"`
}

// runtimeProblem is one problem in the answer of InstallationsHandler.
type runtimeProblem struct {
	Runtime core.RuntimeID `json:"runtime,omitempty"`
	Object  string         `json:"object,omitempty"`
	Problem string         `json:"problem"`
	Manager core.Manager   `json:"manager,omitempty"`
	Reason  string         `json:"reason,omitempty"`
}

func newInstallationsView(all *installations.All, selected *selection) installationsView {
	view := installationsView{Counts: []installationCount{}, Phase: string(all.Phase), Problems: problemsOf(all)}

	for state, count := range all.Runtimes {
		view.Counts = append(view.Counts, installationCount{string(state.State), string(state.Reason), count})
	}

	slices.SortFunc(view.Counts, func(a, b installationCount) int {
		return cmp.Or(cmp.Compare(a.State, b.State), cmp.Compare(a.Reason, b.Reason))
	})

	view.Problems = slices.DeleteFunc(view.Problems, func(p runtimeProblem) bool {
		return !selected.isValue("problem", p.Problem) || !selected.matchesCommon(p.Reason, p.Manager, p.Runtime)
	})
	view.Total = len(view.Problems)
	selected.limit = cmp.Or(selected.limit, defaultProblems)
	view.Problems = part(selected, view.Problems)

	return view
}

func problemsOf(all *installations.All) []runtimeProblem {
	problems := []runtimeProblem{}
	add := func(ids []core.RuntimeID, problem runtimeProblem) {
		for _, id := range ids {
			problem.Runtime = id
			problems = append(problems, problem)
		}
	}

	for _, f := range all.Failed {
		problems = append(problems, runtimeProblem{
			Runtime: f.Runtime, Object: f.Object.String(), Problem: problemFailed, Reason: string(f.Reason),
		})
	}

	for manager, ids := range all.NeverHeard {
		add(ids, runtimeProblem{Problem: problemNeverHeard, Manager: manager})
	}

	add(all.Waiting, runtimeProblem{Problem: problemWaiting})
	add(all.Overdue, runtimeProblem{Problem: problemOverdue})

	slices.SortFunc(problems, func(a, b runtimeProblem) int {
		return cmp.Or(cmp.Compare(a.Runtime, b.Runtime), cmp.Compare(a.Problem, b.Problem),
			cmp.Compare(a.Manager, b.Manager), cmp.Compare(a.Object, b.Object))
	})

	return problems
}
