package listener

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

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
	Counts   []fleetCount    `json:"counts"`
	Runtimes []runtimeStatus `json:"runtimes"`
}

type fleetCount struct {
	Manager core.Manager `json:"manager"`
	State   fleet.State  `json:"state"`
	Reason  string       `json:"reason,omitempty"`
	Count   int          `json:"count"`
}

// runtimeStatus is a [fleet.Status] to be read by people.
type runtimeStatus struct {
	fleet.Status

	Replicas []replicaStatus `json:"replicas,omitempty"`
}

type replicaStatus struct {
	fleet.Replica

	Heartbeat *heartbeatStatus `json:"heartbeat,omitempty"`
}

type heartbeatStatus struct {
	Number                 uint64           `json:"number"`
	Interval               string           `json:"interval"`
	Instance               string           `json:"instance,omitempty"`
	Pending                int64            `json:"pending"`
	OldestPending          string           `json:"oldestPending,omitempty"`
	Dropped                map[string]int64 `json:"dropped,omitempty"`
	Version                string           `json:"version,omitempty"`
	CertificateFingerprint string           `json:"certificateFingerprint,omitempty"`
	CertificateExpiry      time.Time        `json:"certificateExpiry,omitzero"`
	CAFingerprints         []string         `json:"caFingerprints,omitempty"`
	KeyMaterialError       string           `json:"keyMaterialError,omitempty"`
	Canary                 core.CanaryState `json:"canary,omitempty"`
	ConfigHash             string           `json:"configHash,omitempty"`
}

func newRuntimeStatus(s fleet.Status) runtimeStatus {
	view := runtimeStatus{Status: s}
	for _, p := range s.Replicas {
		view.Replicas = append(view.Replicas, replicaStatus{p, newHeartbeatStatus(p.Heartbeat)})
	}

	return view
}

func newHeartbeatStatus(beat *core.Heartbeat) *heartbeatStatus {
	if beat == nil {
		return nil
	}

	view := &heartbeatStatus{
		Number: beat.Number, Interval: beat.Interval.String(), Instance: beat.Instance, Pending: beat.Pending, Dropped: beat.Dropped,
		Version: beat.Version, CertificateFingerprint: beat.CertificateFingerprint, CertificateExpiry: beat.CertificateExpiry,
		CAFingerprints: beat.CAFingerprints, KeyMaterialError: beat.KeyMaterialError, Canary: beat.Canary, ConfigHash: beat.ConfigHash,
	}
	if beat.OldestPending > 0 {
		view.OldestPending = beat.OldestPending.String()
	}

	return view
}

func survey(f *fleet.Fleet, r *http.Request) fleetView {
	query := r.URL.Query()
	asked := func(name, value string) bool { return !query.Has(name) || query.Get(name) == value }
	view := fleetView{Counts: []fleetCount{}, Runtimes: []runtimeStatus{}}

	for manager, summary := range f.Summaries() {
		for c, n := range summary.Runtimes {
			view.Counts = append(view.Counts, fleetCount{Manager: manager, State: c.State, Reason: c.Reason, Count: n})
		}
	}

	f.Range(func(s fleet.Status) bool {
		if asked("state", string(s.State)) && asked("manager", string(s.Manager)) && asked("runtime", string(s.Runtime)) {
			view.Runtimes = append(view.Runtimes, newRuntimeStatus(s))
		}

		return true
	})

	slices.SortFunc(view.Counts, func(a, b fleetCount) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	slices.SortFunc(view.Runtimes, func(a, b runtimeStatus) int {
		return cmp.Or(cmp.Compare(a.Runtime, b.Runtime), cmp.Compare(a.Manager, b.Manager))
	})

	return view
}
