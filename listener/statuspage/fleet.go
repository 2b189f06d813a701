// Package statuspage serves the state of a fleet to people and programs: [FleetHandler] serves the
// freshness of the runtimes, and [InstallationsHandler] the agents that an operator installs. Both
// answer 403 unless [RequireToken] or [Authenticated] is in front of them.
package statuspage

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// FleetHandler returns a handler that answers GET with the freshness of the runtimes: a page for
// browsers, and JSON for all other clients. It answers with 403 unless [RequireToken] or
// [Authenticated] is in front of it. The JSON contains the number of runtimes in each state and a
// status for each runtime.
//
// The query parameters state, reason, manager and runtime select statuses by value. The parameter
// version selects runtimes with an agent of that version, and search selects runtimes by a part of
// the ID. expires=4h selects runtimes with a client certificate that expires within 4 h. The
// parameters offset and limit select a part of the answer; total is then the number without them.
// brief=true leaves out replicas. order=attention sorts the worst first. An unknown parameter or
// value is answered with 400.
//
// As [http.ServeMux.Handle] does, the constructors of this package panic if an argument is nil.
func FleetHandler(f *fleet.Fleet) http.Handler {
	refuseNil("fleet", f)
	page := newFleetPage()
	return newHandler(fleetParameters(), func(w http.ResponseWriter, r *http.Request, selected *selection) {
		// A browser asks for a document. Programs that accept anything get JSON.
		if strings.Contains(r.Header.Get("Accept"), "text/html") {
			page.ServeHTTP(w, r)
			return
		}

		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(newFleetView(f, selected)) // A reader may be gone.
	})
}

func fleetParameters() parameters {
	var states, reasons []string
	for _, c := range fleet.Conditions() {
		states = append(states, string(c.State))
		reasons = append(reasons, string(c.Reason))
	}

	slices.Sort(reasons)
	return parameters{
		"state": slices.Compact(states), "reason": slices.Compact(reasons),
		"order": {"attention"}, "brief": {"true", "false"},
		"manager": nil, "runtime": nil, "version": nil, "search": nil, "expires": nil, "limit": nil, "offset": nil,
	}
}

// newHandler refuses requests without authentication or with a wrong query. It makes both
// handlers of this package.
func newHandler(accepted parameters, answer func(http.ResponseWriter, *http.Request, *selection)) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		protect(w.Header())
		if r.Context().Value(authenticated{}) == nil {
			http.Error(w, "this page is served without authentication: see statuspage.FleetHandler",
				http.StatusForbidden)
			return
		}
		selected, err := newSelection(r.URL.RawQuery, accepted)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer(w, r, &selected)
	})
	return mux
}

// protect keeps answers out of caches, and out of the pages of other origins.
func protect(header http.Header) {
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Vary", "Accept")
	header.Set("X-Content-Type-Options", "nosniff")
}

// fleetPage is the page for browsers: one file, without foreign assets.
//
//go:embed page.html
var fleetPage string

// newFleetPage has a policy for its own script and style, and Trusted Types (CSP Level 3).
func newFleetPage() http.Handler {
	policy := strings.Join([]string{
		"default-src 'none'",
		"script-src " + sourceHash(fleetPage, "script"),
		"style-src " + sourceHash(fleetPage, "style"),
		"connect-src 'self'", "img-src data:",
		"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
		"require-trusted-types-for 'script'", "trusted-types 'none'",
	}, "; ")
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", policy)
		_, _ = w.Write([]byte(fleetPage)) // It fails when the reader is gone.
	})
}

func sourceHash(page, name string) string {
	_, rest, _ := strings.Cut(page, "<"+name+">")
	content, _, _ := strings.Cut(rest, "</"+name+">")
	sum := sha256.Sum256([]byte(content))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// fleetView is the answer of FleetHandler in JSON.
type fleetView struct {
	LeadsSince time.Time       `json:"leadsSince,omitzero"`
	Counts     []fleetCount    `json:"counts"`
	Versions   []versionCount  `json:"versions,omitempty"`
	Events     []eventCount    `json:"events,omitempty"`
	Total      int             `json:"total,omitempty"`
	Runtimes   []runtimeStatus `json:"runtimes"`
}

type fleetCount struct {
	Manager core.Manager `json:"manager"`
	State   fleet.State  `json:"state"`
	Reason  fleet.Reason `json:"reason,omitempty"`
	Count   int          `json:"count"`
}

type versionCount struct {
	Manager core.Manager `json:"manager"`
	Version string       `json:"version"`
	Count   int          `json:"count"`
}

type eventCount struct {
	Manager core.Manager `json:"manager"`
	Count   int64        `json:"count"`
}

type runtimeStatus struct {
	fleet.Status

	Replicas []replicaStatus `json:"replicas,omitempty"`
}

type replicaStatus struct {
	fleet.Replica

	ClockSkew string           `json:"clockSkew,omitempty"`
	Heartbeat *heartbeatStatus `json:"heartbeat,omitempty"`
}

type heartbeatStatus struct {
	core.Heartbeat

	Interval      string `json:"interval"`
	OldestPending string `json:"oldestPending,omitempty"`
}

func newRuntimeStatus(s fleet.Status) runtimeStatus {
	view := runtimeStatus{Status: s}
	for _, p := range s.Replicas {
		shown := replicaStatus{Replica: p}
		if p.ClockSkew != 0 {
			shown.ClockSkew = p.ClockSkew.String()
		}

		if heartbeat := p.Heartbeat; heartbeat != nil {
			shown.Heartbeat = &heartbeatStatus{Heartbeat: *heartbeat, Interval: heartbeat.Interval.String()}
			if heartbeat.OldestPending > 0 {
				shown.Heartbeat.OldestPending = heartbeat.OldestPending.String()
			}
		}

		view.Replicas = append(view.Replicas, shown)
	}

	return view
}

func newFleetView(f *fleet.Fleet, selected *selection) fleetView {
	view := fleetView{LeadsSince: f.LeadsSince(), Counts: []fleetCount{}, Runtimes: []runtimeStatus{}}
	for manager, summary := range f.Summaries() {
		for c, n := range summary.Runtimes {
			view.Counts = append(view.Counts, fleetCount{Manager: manager, State: c.State, Reason: c.Reason, Count: n})
		}

		for version, n := range summary.Versions {
			view.Versions = append(view.Versions, versionCount{Manager: manager, Version: version, Count: n})
		}

		if summary.Events > 0 {
			view.Events = append(view.Events, eventCount{manager, summary.Events})
		}
	}

	slices.SortFunc(view.Counts, func(a, b fleetCount) int {
		return cmp.Or(cmp.Compare(a.Manager, b.Manager), cmp.Compare(a.State, b.State), cmp.Compare(a.Reason, b.Reason))
	})
	slices.SortFunc(view.Versions, func(a, b versionCount) int {
		return cmp.Or(cmp.Compare(a.Manager, b.Manager), cmp.Compare(a.Version, b.Version))
	})
	slices.SortFunc(view.Events, func(a, b eventCount) int { return cmp.Compare(a.Manager, b.Manager) })

	statuses, total := selected.pageOf(f)
	if selected.limit > 0 {
		view.Total = total
	}

	for _, status := range statuses {
		if selected.query.Get("brief") == "true" {
			status.Replicas = nil
		}
		view.Runtimes = append(view.Runtimes, newRuntimeStatus(status))
	}

	return view
}
