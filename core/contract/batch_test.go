package contract_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// oneEvent returns a batch of one event with an attribute or datum replaced.
func oneEvent(t *testing.T, change func(event, data map[string]any)) []byte {
	t.Helper()

	data := map[string]any{
		"watched":    map[string]any{"namespace": "default", "name": "demo"},
		"watchedGvk": map[string]any{"group": "", "version": "v1", "kind": "ConfigMap"},
	}
	event := map[string]any{
		"specversion": "1.0", "id": "1", "source": "/runtimes/a", "type": "com.github.runtime-watcher.changed", "data": data,
	}
	change(event, data)
	return must(json.Marshal([]any{event}))(t)
}

// An event needs only the required attributes, and unknown attributes are ignored.
func TestLeastEventIsTaken(t *testing.T) {
	t.Parallel()

	got := must(contract.V3.Decode(oneEvent(t, func(event, _ map[string]any) { event["myextension"] = 7 })))(t)
	want := core.Batch{Source: "a", Events: []core.Numbered{{ID: "1", WatchEvent: core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: "default", Name: "demo"},
		WatchedGVK: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
	}}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("decoded (-want +got):\n%s", diff)
	}
}

func TestDataMayComeInBase64(t *testing.T) {
	t.Parallel()

	body := oneEvent(t, func(event, data map[string]any) {
		data["further"] = strings.Repeat("x", 8<<10)
		text := must(json.Marshal(data))(t)
		delete(event, "data")
		event["data_base64"] = text // encoding/json writes bytes in base64.
	})

	got, err := contract.V3.Decode(body)
	if err != nil || got.Events[0].Watched.Name != "demo" {
		t.Errorf("decoded %v, %v, want the object demo", got, err)
	}
}

// The error is permanent and names the attribute at fault, so that the author of an agent can mend
// it.
func TestMalformedBatches(t *testing.T) {
	t.Parallel()

	long := strings.Repeat("x", 600)
	for want, change := range map[string]func(event, data map[string]any){
		"specversion is \"0.3\"":      func(e, _ map[string]any) { e["specversion"] = "0.3" },
		"attribute id is missing":     func(e, _ map[string]any) { e["id"] = "" },
		"attribute source is missing": func(e, _ map[string]any) { delete(e, "source") },
		"attribute type is missing":   func(e, _ map[string]any) { delete(e, "type") },
		"attribute id has 600 bytes":  func(e, _ map[string]any) { e["id"] = long },
		"attribute traceparent has":   func(e, _ map[string]any) { e["traceparent"] = long },
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
		"a text field of the heartbeat has 600 bytes": func(e, _ map[string]any) {
			e["type"] = "com.github.runtime-watcher.heartbeat"
			e["data"] = map[string]any{"version": long}
		},
		"0 reasons and 65 CA fingerprints": func(e, _ map[string]any) {
			e["type"] = "com.github.runtime-watcher.heartbeat"
			e["data"] = map[string]any{"caFingerprints": make([]string, 65)}
		},
	} {
		_, err := contract.V3.Decode(oneEvent(t, change))
		switch {
		case !errors.Is(err, contract.ErrMalformed):
			t.Errorf("error %v, want ErrMalformed: %q", err, want)
		case !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "event 0"):
			t.Errorf("error %v, want one that names event 0 and %q", err, want)
		}
	}

	same := func(_, _ map[string]any) {}
	inBase64 := func(data string) string {
		return string(oneEvent(t, func(e, _ map[string]any) {
			delete(e, "data")
			e["data_base64"] = []byte(data)
		}))
	}

	for name, body := range map[string]string{
		"empty":           "",
		"no array":        "{}",
		"none":            "[]",
		"too many":        "[" + strings.Repeat("{},", 500) + "{}]",
		"too long":        "[" + strings.Repeat(" ", 256<<10) + "]",
		"no UTF-8":        strings.Replace(string(oneEvent(t, same)), "demo", "\xff", 1),
		"no UTF-8 inside": inBase64("{\"watched\":{\"name\":\"\xff\"},\"watchedGvk\":{\"kind\":\"a\"}}"),
		"more than data":  inBase64(`{"watched":{"name":"a"},"watchedGvk":{"kind":"a"}}{}`),
	} {
		if _, err := contract.V3.Decode([]byte(body)); !errors.Is(err, contract.ErrMalformed) {
			t.Errorf("%s: error %v, want ErrMalformed", name, err)
		}
	}
}

// A batch claims one source and one epoch, and its heartbeat is the last element.
func TestBatchesAreOfOneSender(t *testing.T) {
	t.Parallel()

	element := func(id, source, epoch, kind string) string {
		return fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/runtimes/%s","epoch":%q,"type":%q}`,
			id, source, epoch, kind)
	}
	first := element("1", "a", "e", "com.github.runtime-watcher.resync")

	for name, tt := range map[string]struct {
		second string
		ok     bool
		before string
	}{
		"resync":            {element("2", "a", "e", "com.github.runtime-watcher.resync"), true, first},
		"heartbeat":         {element("2", "a", "e", "com.github.runtime-watcher.heartbeat"), true, first},
		"another source":    {element("2", "b", "e", "com.github.runtime-watcher.resync"), false, first},
		"another epoch":     {element("2", "a", "f", "com.github.runtime-watcher.resync"), false, first},
		"after a heartbeat": {first, false, element("2", "a", "e", "com.github.runtime-watcher.heartbeat")},
	} {
		batch, err := contract.V3.Decode([]byte("[" + tt.before + "," + tt.second + "]"))
		if (err == nil) != tt.ok || err != nil && !errors.Is(err, contract.ErrMalformed) {
			t.Errorf("%s: Decode = %+v, %v, want success: %v", name, batch, err, tt.ok)
		}
	}
}

// FuzzBatch checks that every batch that is read can be written and read again.
func FuzzBatch(f *testing.F) {
	batch := sampleBatch()
	f.Add(encode(f, contract.V3, batch))
	const start = `[{"specversion":"1.0","id":"1","source":"/runtimes/a","type":"com.github.runtime-watcher.`
	f.Add([]byte(start + `resync"}]`))
	f.Add([]byte(start + `heartbeat","data":{"intervalMs":-1}}]`))
	f.Add([]byte(start + `resync","time":"9999-12-31T23:59:59-23:00"}]`))

	f.Fuzz(func(t *testing.T, body []byte) {
		batch, err := contract.V3.Decode(body)
		if err != nil {
			return
		}

		request, err := contract.V3.Encode(&batch)
		if err != nil {
			t.Fatalf("a decoded batch cannot be encoded: %v: %+v", err, batch)
		}

		checkRequest(t, &batch, &request)
		// An escape of ours may be longer than the text, so that a body is cut.
		for i, err := range request.Failed {
			if !errors.Is(err, core.ErrNotSent) {
				t.Fatalf("element %d of a decoded batch cannot be encoded: %v", i, err)
			}
		}
	})
}

func BenchmarkBatch(b *testing.B) {
	batch := manyEvents(500, 0)
	body := encode(b, contract.V3, batch)
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()

		b.SetBytes(int64(len(body)))
		for b.Loop() {
			if _, err := contract.V3.Encode(&batch); err != nil {
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

// Exactly the known names are accepted. The error lists them, and does not repeat a long input.
func TestParseVersion(t *testing.T) {
	t.Parallel()

	for _, want := range contract.Versions() {
		got, err := contract.ParseVersion(string(want))
		if err != nil || got != want {
			t.Errorf("ParseVersion(%s) = %q, %v", want, got, err)
		}
	}

	for _, name := range []string{"", "v0", "V1", " v1", "v1/", strings.Repeat("v", 300)} {
		_, err := contract.ParseVersion(name)
		switch {
		case !errors.Is(err, contract.ErrUnknownVersion):
			t.Errorf("ParseVersion(%.20q) = %v, want ErrUnknownVersion", name, err)
		case !strings.Contains(err.Error(), "v1 v2") || len(err.Error()) > 100:
			t.Errorf("ParseVersion(%.20q) = %v: want a short text that names the contracts", name, err)
		}
	}
}

func TestUnknownVersionsNeitherEncodeNorDecode(t *testing.T) {
	t.Parallel()

	const none contract.Version = "v0"
	if _, err := none.Encode(&core.Batch{}); !errors.Is(err, contract.ErrUnknownVersion) || !core.IsPermanent(err) {
		t.Errorf("Encode = %v, want ErrUnknownVersion", err)
	}
	if _, err := none.Decode([]byte(`{}`)); !errors.Is(err, contract.ErrUnknownVersion) || !core.IsPermanent(err) {
		t.Errorf("Decode = %v, want ErrUnknownVersion", err)
	}
}

// The properties of each contract are fixed: deployed agents and gateways depend on them.
func TestTraits(t *testing.T) {
	t.Parallel()

	for version, want := range map[contract.Version]string{
		contract.V1: "/v1/kyma/event application/json 200 1 16384, owner true, numbers false",
		contract.V2: "/v2/kyma/event application/json 200 1 16384, owner false, numbers false",
		contract.V3: "/v3/kyma/events application/cloudevents-batch+json 202 500 262144, owner false, numbers true",
	} {
		got := fmt.Sprint(version.Path("kyma"), " ", version.ContentType(), " ",
			version.Status(), version.MaxEvents(), version.MaxBody(), ", owner ", version.NeedsOwner(), ", numbers ", version.Numbered())
		if got != want {
			t.Errorf("%s has the traits %s, want %s", version, got, want)
		}

		if path := version.Path("a/b%2F?#"); strings.Count(path, "/") != 3 || strings.ContainsAny(path, "?#") {
			t.Errorf("%s: Path = %s is not escaped", version, path)
		}
		request, err := version.Encode(&core.Batch{Source: "r", Heartbeat: &core.Heartbeat{ID: "h"}})
		if err != nil || (request.Body != nil) != version.Numbered() || len(request.Failed) > 0 {
			t.Errorf("%s: Encode of a heartbeat = %+v, %v, want no failure, and a body with numbers only", version, request, err)
		}

		if _, err := version.Encode(&core.Batch{Source: "r"}); !errors.Is(err, contract.ErrMalformed) {
			t.Errorf("%s: Encode of an empty batch = %v, want ErrMalformed", version, err)
		}
	}

	if !slices.IsSorted(contract.Versions()) {
		t.Errorf("Versions = %v, want the oldest first", contract.Versions())
	}
}

func must[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return value
	}
}
