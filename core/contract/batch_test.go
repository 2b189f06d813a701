package contract_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// batch is one event of each kind, with everything that it can say.
func batch() []core.WatchEvent {
	at := time.Date(2026, 11, 21, 3, 27, 0, 5e8, time.UTC)

	return []core.WatchEvent{{
		ID: "4f2a-kyma-1", Source: "runtime/1 ü", Epoch: "4f2a", Sequence: 1, Kind: core.KindResync, Time: at,
	}, {
		ID: "4f2a-kyma-2", Source: "runtime/1 ü", Epoch: "4f2a", Sequence: 2, Time: at,
		TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		Owner:       types.NamespacedName{Namespace: "kcp-system", Name: "runtime-1"},
		Watched:     types.NamespacedName{Namespace: "default", Name: "demo"},
		WatchedGVK:  schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
		Operation:   core.OperationUpdate, Field: core.FieldSpec, Generation: 7,
	}, {
		ID: "4f2a-kyma-heartbeat-3", Source: "runtime/1 ü", Epoch: "4f2a", Kind: core.KindHeartbeat, Time: at,
		Heartbeat: &core.Heartbeat{
			Number: 3, Interval: 30 * time.Second, Instance: "agent-0", Leaving: true, Sequence: 2, Pending: 4,
			OldestPending: 1500 * time.Millisecond, Dropped: map[string]int64{"overflow": 5}, Version: "1.2.3",
			CertificateFingerprint: "aa", CertificateExpiry: at.Add(time.Hour), CAFingerprints: []string{"bb", "cc"},
			KeyMaterialError: "tls.key: empty", Canary: core.CanaryLost, ConfigHash: "dd",
		},
	}}
}

func TestBatchIsPinned(t *testing.T) {
	t.Parallel()

	got, err := contract.V3.Encode(batch())
	if err != nil {
		t.Fatal(err)
	}

	want, err := os.ReadFile(filepath.Join("testdata", "v3.json"))
	if err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff(indent(t, want), indent(t, got)); diff != "" {
		t.Errorf("wire of v3 (-want +got):\n%s", diff)
	}

	back, err := contract.V3.Decode(want)
	if err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff(batch(), back); diff != "" {
		t.Errorf("decoded (-want +got):\n%s", diff)
	}
}

func indent(t *testing.T, text []byte) string {
	t.Helper()

	var value []map[string]any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatalf("%v in %s", err, text)
	}

	lines, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		t.Fatal(err)
	}

	return string(lines)
}

func TestBatchTraits(t *testing.T) {
	t.Parallel()

	v := contract.V3
	if v.Path("kyma") != "/v3/kyma/events" || v.ContentType() != "application/cloudevents-batch+json" || v.Status() != 202 ||
		v.MaxEvents() != 500 || v.MaxBody() != 256<<10 || v.NeedsOwner() || !v.Numbered() {
		t.Errorf("v3 has path %s, type %s, status %d, %d events, %d bytes, owner %v, numbers %v",
			v.Path("kyma"), v.ContentType(), v.Status(), v.MaxEvents(), v.MaxBody(), v.NeedsOwner(), v.Numbered())
	}

	if contract.V1.Numbered() || contract.V2.Status() != 200 {
		t.Error("v1 and v2 must stay as they are deployed")
	}
}

// oneEvent returns a batch of one event with an attribute or datum replaced.
func oneEvent(t *testing.T, change func(event, data map[string]any)) []byte {
	t.Helper()

	data := map[string]any{
		"watched":    map[string]any{"namespace": "default", "name": "demo"},
		"watchedGvk": map[string]any{"group": "", "version": "v1", "kind": "ConfigMap"},
	}
	event := map[string]any{
		"specversion": "1.0", "id": "1", "source": "/runtimes/a", "type": contract.TypeChanged, "data": data,
	}
	change(event, data)

	text, err := json.Marshal([]any{event})
	if err != nil {
		t.Fatal(err)
	}

	return text
}

func TestLeastEventIsTaken(t *testing.T) {
	t.Parallel()

	got, err := contract.V3.Decode(oneEvent(t, func(event, _ map[string]any) { event["myextension"] = 7 }))
	if err != nil {
		t.Fatal(err)
	}

	want := []core.WatchEvent{{
		ID: "1", Source: "a",
		Watched:    types.NamespacedName{Namespace: "default", Name: "demo"},
		WatchedGVK: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("decoded (-want +got):\n%s", diff)
	}
}

func TestDataMayComeInBase64(t *testing.T) {
	t.Parallel()

	body := oneEvent(t, func(event, data map[string]any) {
		text, err := json.Marshal(data)
		if err != nil {
			t.Fatal(err)
		}

		delete(event, "data")

		event["data_base64"] = text // encoding/json writes bytes in base64.
	})

	got, err := contract.V3.Decode(body)
	if err != nil || got[0].Watched.Name != "demo" {
		t.Errorf("decoded %v, %v, want the object demo", got, err)
	}
}

func TestMalformedBatches(t *testing.T) {
	t.Parallel()

	long := strings.Repeat("x", 600)

	for want, change := range map[string]func(event, data map[string]any){
		"specversion is \"0.3\"":      func(e, _ map[string]any) { e["specversion"] = "0.3" },
		"attribute id is missing":     func(e, _ map[string]any) { e["id"] = "" },
		"attribute source is missing": func(e, _ map[string]any) { delete(e, "source") },
		"attribute type is missing":   func(e, _ map[string]any) { delete(e, "type") },
		"attribute id has 600 bytes":  func(e, _ map[string]any) { e["id"] = long },
		"source is \"runtime-1\"":     func(e, _ map[string]any) { e["source"] = "runtime-1" },
		"source is \"/runtimes/\"":    func(e, _ map[string]any) { e["source"] = "/runtimes/" },
		"source is \"/runtimes/%zz\"": func(e, _ map[string]any) { e["source"] = "/runtimes/%zz" },
		"type is \"com.example\"":     func(e, _ map[string]any) { e["type"] = "com.example" },
		"sequence is \"-1\"":          func(e, _ map[string]any) { e["sequence"] = "-1" },
		"data of type":                func(e, _ map[string]any) { e["data"] = 7 },
		"watched.name is empty":       func(_, d map[string]any) { delete(d, "watched") },
		"watchedGvk.kind is empty":    func(_, d map[string]any) { delete(d, "watchedGvk") },
		"owner.namespace is empty":    func(_, d map[string]any) { d["owner"] = map[string]any{"name": "a"} },
		"operation has 600 bytes":     func(_, d map[string]any) { d["operation"] = long },
		"a text of 600 bytes": func(e, _ map[string]any) {
			e["type"] = contract.TypeHeartbeat
			e["data"] = map[string]any{"version": long}
		},
		"0 reasons and 17 CA fingerprints": func(e, _ map[string]any) {
			e["type"] = contract.TypeHeartbeat
			e["data"] = map[string]any{"caFingerprints": make([]string, 17)}
		},
	} {
		_, err := contract.V3.Decode(oneEvent(t, change))
		if !errors.Is(err, contract.ErrMalformed) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "event 0") {
			t.Errorf("error %v, want one that names event 0 and says %q", err, want)
		}
	}

	for name, body := range map[string]string{
		"empty":    "",
		"no array": "{}",
		"none":     "[]",
		"too many": "[" + strings.Repeat("{},", 500) + "{}]",
		"too long": "[" + strings.Repeat(" ", 256<<10) + "]",
	} {
		if _, err := contract.V3.Decode([]byte(body)); !errors.Is(err, contract.ErrMalformed) {
			t.Errorf("%s: error %v, want ErrMalformed", name, err)
		}
	}
}

func TestUnsendableEvents(t *testing.T) {
	t.Parallel()

	for name, change := range map[string]func(*core.WatchEvent){
		"no id":        func(e *core.WatchEvent) { e.ID = "" },
		"no source":    func(e *core.WatchEvent) { e.Source = "" },
		"no name":      func(e *core.WatchEvent) { e.Watched.Name = "" },
		"kind":         func(e *core.WatchEvent) { e.Kind = 9 },
		"no heartbeat": func(e *core.WatchEvent) { e.Kind = core.KindHeartbeat },
	} {
		events := batch()
		change(&events[1])

		if _, err := contract.V3.Encode(events); !errors.Is(err, contract.ErrMalformed) || !strings.Contains(err.Error(), "event 1") {
			t.Errorf("%s: error %v, want ErrMalformed with the event's number", name, err)
		}
	}
}

func TestBatchThatIsTooLarge(t *testing.T) {
	t.Parallel()

	events := make([]core.WatchEvent, 500)
	for i := range events {
		events[i] = batch()[1]
		events[i].Watched.Name = strings.Repeat("n", 253)
	}

	if _, err := contract.V3.Encode(events); !errors.Is(err, contract.ErrTooLarge) {
		t.Errorf("500 large events: %v, want ErrTooLarge", err)
	}

	if _, err := contract.V3.Encode(events[:200]); err != nil {
		t.Errorf("200 large events: %v, want nil", err)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()

	want := map[int]contract.Failure{
		0: {Status: 503, Reason: "not_ready", RetryAfter: 2 * time.Second},
		7: {Status: 403, Reason: "san_mismatch"},
	}

	body, err := contract.EncodeFailures("not_ready", want)
	if err != nil {
		t.Fatal(err)
	}

	got, ok := contract.DecodeFailures(body, 8)
	if diff := cmp.Diff(want, got); !ok || diff != "" {
		t.Errorf("decoded %v (-want +got):\n%s", ok, diff)
	}

	for name, answer := range map[string]string{
		"nothing":      "",
		"plain":        `{"reason":"busy"}`,
		"out of range": `{"failed":[{"index":8,"status":503}]}`,
		"negative":     `{"failed":[{"index":-1,"status":503}]}`,
		"html":         "<html>",
	} {
		if got, ok := contract.DecodeFailures([]byte(answer), 8); ok {
			t.Errorf("%s: %v, want no failures", name, got)
		}
	}
}

// FuzzBatch makes sure that foreign bytes do no harm, and that what is read can be written and read again.
func FuzzBatch(f *testing.F) {
	if body, err := contract.V3.Encode(batch()); err == nil {
		f.Add(body)
	}

	f.Add([]byte(`[{"specversion":"1.0","id":"1","source":"/runtimes/a","type":"com.github.runtime-watcher.resync"}]`))
	f.Add([]byte(`[{"specversion":"1.0","id":"1","source":"/runtimes/a","type":"com.github.runtime-watcher.heartbeat","data":{"intervalMs":-1}}]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		events, err := contract.V3.Decode(body)
		if err != nil {
			return
		}

		again, err := contract.V3.Encode(events)
		if errors.Is(err, contract.ErrTooLarge) {
			return // Names that need no escape in the text may need one in ours.
		}

		if err != nil {
			t.Fatalf("what was decoded can not be encoded: %v: %+v", err, events)
		}

		// A heartbeat that lists nothing says the same as one without the list, which is what is written.
		back, err := contract.V3.Decode(again)
		if diff := cmp.Diff(events, back, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Fatalf("decoded again: %v (-first +second):\n%s", err, diff)
		}
	})
}

func FuzzFailures(f *testing.F) {
	f.Add([]byte(`{"failed":[{"index":1,"status":503,"retryAfter":9223372036854775807}]}`), 3)
	f.Fuzz(func(t *testing.T, answer []byte, size int) {
		failures, ok := contract.DecodeFailures(answer, size)
		for index, failure := range failures {
			if !ok || index < 0 || index >= size || failure.RetryAfter < 0 || failure.RetryAfter > time.Hour {
				t.Errorf("%v: failure %d is %+v", ok, index, failure)
			}
		}
	})
}

func BenchmarkBatch(b *testing.B) {
	events := make([]core.WatchEvent, 500)
	for i := range events {
		events[i] = batch()[1]
		events[i].ID, events[i].TraceParent = fmt.Sprint("4f2a-kyma-", i), ""
	}

	body, err := contract.V3.Encode(events)
	if err != nil {
		b.Fatal(err)
	}

	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(body)))

		for b.Loop() {
			if _, err := contract.V3.Encode(events); err != nil {
				b.Fatal(err)
			}
		}
	})

	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(body)))

		for b.Loop() {
			if _, err := contract.V3.Decode(body); err != nil {
				b.Fatal(err)
			}
		}
	})
}
