package listener

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// FleetHandler returns a handler that answers GET with the freshness of the runtimes, as JSON. The
// answer has the number of runtimes in each state, and the status of each runtime. The query
// parameters state, manager and runtime select statuses. The handler does not authenticate: serve
// it on a port for operators only.
func FleetHandler(f *fleet.Fleet) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(newFleetView(f, r.URL.Query())) // It fails when the reader is gone.
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

// runtimeStatus is a [fleet.Status] with readable durations.
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
	LastReview             time.Time        `json:"lastReview,omitzero"`
	WebhookFailures        int64            `json:"webhookFailures,omitempty"`
	ConfigHash             string           `json:"configHash,omitempty"`
	ConfigError            string           `json:"configError,omitempty"`
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
		Number:                 beat.Number,
		Interval:               beat.Interval.String(),
		Instance:               beat.Instance,
		Pending:                beat.Pending,
		Dropped:                beat.Dropped,
		Version:                beat.Version,
		CertificateFingerprint: beat.CertificateFingerprint,
		CertificateExpiry:      beat.CertificateExpiry,
		CAFingerprints:         beat.CAFingerprints,
		KeyMaterialError:       beat.KeyMaterialError,
		Canary:                 beat.Canary,
		LastReview:             beat.LastReview,
		WebhookFailures:        beat.WebhookFailures,
		ConfigHash:             beat.ConfigHash,
		ConfigError:            beat.ConfigError,
	}
	if beat.OldestPending > 0 {
		view.OldestPending = beat.OldestPending.String()
	}
	return view
}

func newFleetView(f *fleet.Fleet, query url.Values) fleetView {
	return fleetView{Counts: countStates(f), Runtimes: selectStatuses(f, query)}
}

func countStates(f *fleet.Fleet) []fleetCount {
	counts := []fleetCount{}
	for manager, summary := range f.Summaries() {
		for c, n := range summary.Runtimes {
			counts = append(counts, fleetCount{Manager: manager, State: c.State, Reason: c.Reason, Count: n})
		}
	}
	slices.SortFunc(counts, func(a, b fleetCount) int {
		return cmp.Or(cmp.Compare(a.Manager, b.Manager), cmp.Compare(a.State, b.State), cmp.Compare(a.Reason, b.Reason))
	})
	return counts
}

func selectStatuses(f *fleet.Fleet, query url.Values) []runtimeStatus {
	statuses := []runtimeStatus{}
	selected := func(name, value string) bool { return !query.Has(name) || query.Get(name) == value }
	f.Range(func(s fleet.Status) bool {
		if selected("state", string(s.State)) && selected("manager", string(s.Manager)) &&
			selected("runtime", string(s.Runtime)) {
			statuses = append(statuses, newRuntimeStatus(s))
		}
		return true
	})
	slices.SortFunc(statuses, func(a, b runtimeStatus) int {
		return cmp.Or(cmp.Compare(a.Runtime, b.Runtime), cmp.Compare(a.Manager, b.Manager))
	})
	return statuses
}
