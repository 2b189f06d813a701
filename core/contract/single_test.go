package contract_test

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

func owner() types.NamespacedName {
	return types.NamespacedName{Namespace: "kcp-system", Name: "runtime-1"}
}

func sample() core.WatchEvent {
	return core.WatchEvent{
		Owner:      owner(),
		Watched:    types.NamespacedName{Namespace: "default", Name: "sample"},
		WatchedGVK: schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Sample"},
	}
}

func withoutOwner(e core.WatchEvent) core.WatchEvent {
	e.Owner = types.NamespacedName{}
	return e
}

// deployed is the event as today's producers and consumers declare it, with encoding/json.
type deployed struct {
	Owner      types.NamespacedName `json:"owner"`
	Watched    types.NamespacedName `json:"watched"`
	WatchedGvk struct {
		Group   string `json:"group"`
		Version string `json:"version"`
		Kind    string `json:"kind"`
	} `json:"watchedGvk"`
}

func toDeployed(e core.WatchEvent) deployed {
	d := deployed{Owner: e.Owner, Watched: e.Watched}
	kind := &d.WatchedGvk
	kind.Group = e.WatchedGVK.Group
	kind.Version = e.WatchedGVK.Version
	kind.Kind = e.WatchedGVK.Kind
	return d
}

func TestDecodeReadsWhatDeployedProducersSend(t *testing.T) {
	t.Parallel()

	sent := must(json.Marshal(toDeployed(sample())))(t)
	lower := strings.NewReplacer("Namespace", "namespace", "Name", "name", "watchedGvk", "watchedgvk")
	upper := strings.NewReplacer("owner", "OWNER", "watched", "WATCHED", "group", "GROUP")
	bodies := map[string]string{
		"as sent":    string(sent),
		"indented":   "\n" + strings.ReplaceAll(string(sent), ",", ",\n\t") + "\n",
		"lower case": lower.Replace(string(sent)),
		"upper case": upper.Replace(string(sent)),
		"more":       strings.Replace(string(sent), "{", `{"operation":"UPDATE","more":[{"a":null}],`, 1),
		"more below": strings.Replace(string(sent), `{"Namespace"`, `{"UID":7,"Namespace"`, 1),
	}

	for name, body := range bodies {
		checkDecoded(t, name, contract.V1, body, sample())
		checkDecoded(t, name, contract.V2, body, withoutOwner(sample()))
	}

	// In v2 the owner is an unknown field of any type.
	for _, odd := range []string{`null`, `"kcp-system/runtime-1"`, `7`, `[]`, `{"Name":7}`} {
		body := strings.Replace(string(golden(t, "v2.json")), "{", `{"owner":`+odd+`,`, 1)
		checkDecoded(t, odd, contract.V2, body, withoutOwner(sample()))
	}
}

func checkDecoded(t *testing.T, name string, version contract.Version, body string, want core.WatchEvent) {
	t.Helper()

	got, err := version.Decode([]byte(body))
	if diff := cmp.Diff(core.NewBatch(want), got); err != nil || diff != "" {
		t.Errorf("%s, %s, error %v (-want +got):\n%s", version, name, err, diff)
	}
}

// The error of a malformed body names the contract, and the field at fault with its bound.
func TestDecodeRefuses(t *testing.T) {
	t.Parallel()

	v1 := string(golden(t, "v1.json"))
	v2 := string(golden(t, "v2.json"))
	long := strings.Repeat("x", 254)
	tests := []struct {
		name    string
		version contract.Version
		body    string
		want    string // is part of the error
	}{
		{"nothing", contract.V2, ``, "want an event of contract v2 in JSON"},
		{"null", contract.V2, `null`, "watched.Name is empty"},
		{"no object", contract.V2, `[]`, "want an event of contract v2 in JSON"},
		{"broken", contract.V1, v1[:len(v1)-1], "want an event of contract v1 in JSON"},
		{"two", contract.V2, v2 + v2, "want an event of contract v2 in JSON"},
		{
			"number as name", contract.V2, strings.Replace(v2, `"sample"`, `7`, 1),
			"want an event of contract v2 in JSON",
		},
		{"no owner", contract.V1, v2, "owner.Namespace is empty"},
		{"null owner", contract.V1, strings.Replace(v2, "{", `{"owner":null,`, 1), "owner.Namespace is empty"},
		{"owner without name", contract.V1, strings.Replace(v1, `runtime-1`, ``, 1), "owner.Name is empty"},
		{"no name", contract.V2, strings.Replace(v2, `sample`, ``, 1), "watched.Name is empty"},
		{"no kind", contract.V2, strings.Replace(v2, `Sample`, ``, 1), "watchedGvk.kind is empty"},
		{
			"long name", contract.V2, strings.Replace(v2, `sample`, long, 1),
			"watched.Name has 254 bytes, want at most 253",
		},
		{"long namespace", contract.V2, strings.Replace(v2, `default`, long, 1), "watched.Namespace has 254 bytes"},
		{
			"long group", contract.V2, strings.Replace(v2, `operator.kyma-project.io`, long, 1),
			"watchedGvk.group has 254 bytes",
		},
		{"long version", contract.V2, strings.Replace(v2, `v1beta2`, long, 1), "watchedGvk.version has 254 bytes"},
		{"too large", contract.V2, v2 + strings.Repeat(" ", 16<<10), "want at most 16384"},
	}

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			batch, err := tt.version.Decode([]byte(tt.body))
			switch {
			case !errors.Is(err, contract.ErrMalformed) || !batch.IsEmpty():
				t.Fatalf("Decode = %v, %v, want ErrMalformed", batch, err)
			case !core.IsPermanent(err) || core.ReasonOf(err) != "malformed":
				t.Errorf("IsPermanent = %v, Reason = %s: want true, malformed", core.IsPermanent(err), core.ReasonOf(err))
			case !strings.Contains(err.Error(), tt.want):
				t.Errorf("error is %q, want it to say %q", err, tt.want)
			}
		})
	}
}

// An event that contracts v1 and v2 cannot express fails with a permanent error, and nothing is
// sent.
func TestUnsendableSingleEvents(t *testing.T) {
	t.Parallel()

	change := func(change func(e *core.WatchEvent)) core.WatchEvent {
		e := sample()
		change(&e)
		return e
	}

	long := strings.Repeat("x", 300)
	for name, tt := range map[string]struct {
		version contract.Version
		event   core.WatchEvent
	}{
		"v1 without owner":        {contract.V1, withoutOwner(sample())},
		"v1 resync without owner": {contract.V1, core.WatchEvent{Resync: true}},
		"without name":            {contract.V2, change(func(e *core.WatchEvent) { e.Watched.Name = "" })},
		"without kind":            {contract.V2, change(func(e *core.WatchEvent) { e.WatchedGVK.Kind = "" })},
		"no UTF-8":                {contract.V2, change(func(e *core.WatchEvent) { e.Watched.Name = "a\xff" })},
		"long group":              {contract.V2, change(func(e *core.WatchEvent) { e.WatchedGVK.Group = long })},
	} {
		batch := core.NewBatch(tt.event)
		request, err := tt.version.Encode(&batch)
		if err != nil || request.Body != nil || request.Sent != nil {
			t.Errorf("%s: Encode = %+v, %v, want no body", name, request, err)
		}

		if failed := request.Failed[0]; !errors.Is(failed, contract.ErrMalformed) || !core.IsPermanent(failed) {
			t.Errorf("%s: the event fails with %v, want ErrMalformed", name, failed)
		}
	}
}

// A request of v1 and v2 carries the first event that the contract can express.
func TestSingleRequestsCarryOneEvent(t *testing.T) {
	t.Parallel()

	batch := core.NewBatch(withoutOwner(sample()), sample(), sample())
	batch.Heartbeat = &core.Heartbeat{ID: "h"}
	request, err := contract.V1.Encode(&batch)
	if err != nil || !slices.Equal(request.Sent, []int{1}) || request.Heartbeat || len(request.Failed) != 2 {
		t.Fatalf("Encode = %+v, %v, want the event 1 only", request, err)
	}

	if !errors.Is(request.Failed[0], contract.ErrMalformed) || !errors.Is(request.Failed[2], core.ErrNotSent) {
		t.Errorf("failed: %v, want ErrMalformed for 0 and ErrNotSent for 2", map[int]error(request.Failed))
	}
	checkDecoded(t, "the event", contract.V1, string(request.Body), sample())
}

// Names of the greatest length, in the longest encoding, fit into a body of contract v1.
func TestTheLongestEventFits(t *testing.T) {
	t.Parallel()

	longest := strings.Repeat("<", 253) // encoding/json writes six bytes for each.
	name := types.NamespacedName{Namespace: longest, Name: longest}
	kind := schema.GroupVersionKind{Group: longest, Version: longest, Kind: longest}
	event := core.WatchEvent{Owner: name, Watched: name, WatchedGVK: kind}
	checkDecoded(t, "longest", contract.V1, string(encode(t, contract.V1, core.NewBatch(event))), event)
}

func FuzzSingleDecode(f *testing.F) {
	files, err := filepath.Glob("testdata/v[12]*.json")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}

	for _, file := range files {
		f.Add(golden(f, filepath.Base(file)))
	}

	for _, seed := range []string{
		``, `null`, `{}`, `[]`, `{"watched":{"name":"a"},"watchedgvk":{"KIND":"b"}}`, `{"owner":{}}`,
		`{"watched":{"Name":"a","Name":null},"watchedGvk":{"kind":"b"},"watchedGvk":null,"watched":{"Namespace":"c"}}`,
		`{"watched":{"Name":"a"},"watchedGvk":{"kind":"b"},"new":[1]} `, `{"watched":{"Name":"a"},"watchedGvk":{"kind":"b"}}x`,
		`{"owner":{"Namespace":"d","Name":"e"},"watched":{"Name":"a","name":"A"},"watchedGvk":{"kind":"b"}}`,
		`{"watched":{"Namespace":"c","Namespace":null,"Name":"a"},"watchedGvk":{"group":"d","group":null,"kind":"b"}}`,
		`{"owner":7,"watched":{"Name":"\u00e4\ud800"},"watchedGvk":{"kind":"b"}}`,
	} {
		f.Add([]byte(seed))
	}

	f.Fuzz(func(t *testing.T, body []byte) {
		for _, version := range []contract.Version{contract.V1, contract.V2} {
			checkRoundTrip(t, version, body)
		}
	})
}

// checkRoundTrip fails t unless a body is refused as malformed, or means the same to encoding/json,
// and survives another encoding.
func checkRoundTrip(t *testing.T, version contract.Version, body []byte) {
	t.Helper()

	batch, err := version.Decode(body)
	if err != nil {
		if !errors.Is(err, contract.ErrMalformed) {
			t.Fatalf("%s: error %v is not ErrMalformed", version, err)
		}
		return
	}

	if !json.Valid(body) {
		t.Fatalf("%s: takes %q, which is not JSON", version, body)
	}

	event := batch.Events[0].WatchEvent
	var plain deployed
	if err := json.Unmarshal(body, &plain); err == nil && !event.Resync {
		if !version.NeedsOwner() {
			plain.Owner = types.NamespacedName{}
		}
		if diff := cmp.Diff(plain, toDeployed(event)); diff != "" {
			t.Fatalf("%s: %s (-deployed +ours):\n%s", version, body, diff)
		}
	}

	checkDecoded(t, "again", version, string(encode(t, version, batch)), event)
}
