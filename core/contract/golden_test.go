package contract_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

func golden(tb testing.TB, file string) []byte {
	tb.Helper()
	return must(os.ReadFile(filepath.Join("testdata", file)))(tb)
}

// checkGolden fails t unless a batch is encoded as the file says, and the file is decoded to the
// batch. Changed makes the texts comparable line by line.
func checkGolden(t *testing.T, file string, version contract.Version, batch core.Batch, changed func(*testing.T, []byte) string) {
	t.Helper()

	want := golden(t, file)
	if diff := cmp.Diff(changed(t, want), changed(t, encode(t, version, batch))); diff != "" {
		t.Errorf("%s: Encode (-golden +got):\n%s", file, diff)
	}
	back, err := version.Decode(want)
	if diff := cmp.Diff(batch, back); err != nil || diff != "" {
		t.Errorf("%s: Decode, error %v (-want +got):\n%s", file, err, diff)
	}
}

// The wire of contracts v1 and v2 is deployed today: byte by byte.
func TestSingleGolden(t *testing.T) {
	t.Parallel()

	clusterScoped := core.WatchEvent{
		Owner:      owner(),
		Watched:    types.NamespacedName{Name: "system:node"},
		WatchedGVK: schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"},
	}

	coreGroup := core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: "default", Name: "settings"},
		WatchedGVK: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
	}
	unchanged := func(_ *testing.T, text []byte) string { return string(text) }

	for file, event := range map[string]core.WatchEvent{
		"v1.json":                sample(),
		"v1-cluster-scoped.json": clusterScoped,
		"v1-resync.json":         {Resync: true, Owner: owner()},
		"v2.json":                withoutOwner(sample()),
		"v2-core-group.json":     coreGroup,
		"v2-resync.json":         {Resync: true},
	} {
		checkGolden(t, file, contract.Version(file[:2]), core.NewBatch(event), unchanged)
	}
}

// A receiver that does not know uid and base ignores them.
func TestBatchGolden(t *testing.T) {
	t.Parallel()

	based := core.Numbered{Sequence: 2, ID: "4f2a-kyma-2", WatchEvent: fullEvent(time.Time{})}
	based.UID = "4d0e5b6c-2f6a-4a3f-9f4a-0c8b1f7f6a11"
	based.Base = 1 << 62
	checkGolden(t, "v3.json", contract.V3, sampleBatch(), indent)
	checkGolden(t, "v3-base.json", contract.V3, core.Batch{Source: "runtime-1", Events: []core.Numbered{based}}, indent)
}

// sampleBatch has each kind of element, with all fields.
func sampleBatch() core.Batch {
	at := time.Date(2026, 11, 21, 3, 27, 0, 5e8, time.UTC)
	return core.Batch{
		Source: "runtime/1 ü",
		Epoch:  "4f2a",
		Events: []core.Numbered{
			{Sequence: 1, ID: "4f2a-kyma-1", WatchEvent: core.WatchEvent{Resync: true, Time: at}},
			{Sequence: 2, ID: "4f2a-kyma-2", WatchEvent: fullEvent(at)},
		},
		Heartbeat: fullHeartbeat(at),
	}
}

func fullEvent(at time.Time) core.WatchEvent {
	return core.WatchEvent{
		Owner:       owner(),
		Watched:     types.NamespacedName{Namespace: "default", Name: "demo"},
		WatchedGVK:  schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
		Operation:   core.OperationUpdate,
		Field:       core.FieldSpec,
		Generation:  7,
		Time:        at,
		TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
}

func fullHeartbeat(at time.Time) *core.Heartbeat {
	return &core.Heartbeat{
		ID:                     "4f2a-kyma-heartbeat-3",
		Time:                   at,
		Number:                 3,
		Interval:               30 * time.Second,
		Instance:               "agent-0",
		Leaving:                true,
		Sequence:               2,
		Pending:                4,
		OldestPending:          1500 * time.Millisecond,
		Dropped:                map[core.Reason]int64{"overflow": 5},
		Version:                "1.2.3",
		CertificateFingerprint: "aa",
		CertificateExpiry:      at.Add(time.Hour),
		CAFingerprints:         []string{"bb", "cc"},
		KeyMaterialError:       "tls.key: empty",
		ConfigError:            "managers: broken",
		Canary:                 core.CanaryLost,
		CanaryError:            "403 Forbidden",
		WebhookError:           "one is missing",
		ConfigHash:             "dd",
		Interruption: core.Interruption{
			Reason: "proxy_unreachable", Error: "connection refused", Since: at.Add(time.Second), Until: at.Add(time.Minute),
		},
	}
}

func indent(t *testing.T, text []byte) string {
	t.Helper()

	var value []map[string]any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	lines := must(json.MarshalIndent(value, "", "  "))(t)
	return string(lines)
}

// encode returns the body of a batch that one request carries.
func encode(tb testing.TB, version contract.Version, batch core.Batch) []byte {
	tb.Helper()
	request, err := version.Encode(&batch)
	if err != nil || len(request.Failed) > 0 {
		tb.Fatalf("%s: Encode = %v, failed %v", version, err, request.Failed)
	}
	return request.Body
}
