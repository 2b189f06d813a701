package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/mock/gomock"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coremock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOffersTheChangesThatMatter(t *testing.T) {
	watch, err := os.Open("testdata/watch.json")
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	var out bytes.Buffer
	if err := run(t.Context(), nil, watch, &out); err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := []string{
		"my-operator CREATE Deployment default/demo", // The change of its status does not matter.
		"my-operator UPDATE Deployment default/other",
		"my-operator DELETE Deployment default/gone",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestComparesWithTheLastState(t *testing.T) {
	outbox := coremock.NewMockAcceptor(gomock.NewController(t))
	for generation := range int64(2) {
		outbox.EXPECT().Accept(core.Manager("my-operator"), coremock.Event(core.WatchEvent{
			Watched: types.NamespacedName{Name: "p"}, WatchedGVK: schema.GroupVersionKind{Version: "v1", Kind: "Pod"},
			Operation: core.OperationUpdate, Field: core.FieldSpec, Generation: generation + 1,
		}))
	}
	const line = `{"type":"MODIFIED","object":{"apiVersion":"v1","kind":"Pod",` +
		`"metadata":{"name":"p","generation":GEN},"spec":{"image":"vGEN"}}}`
	watch := strings.ReplaceAll(line+line, "GEN", "1") + strings.ReplaceAll(line, "GEN", "2")
	if err := newSource("my-operator", outbox).readChanges(strings.NewReader(watch)); err != nil {
		t.Fatal(err)
	}
}

func TestReportsTheEndOfAWatch(t *testing.T) {
	for name, c := range map[string]struct{ watch, want string }{
		"error":      {`{"type":"ERROR","object":{"kind":"Status","code":410}}`, "410"},
		"not JSON":   {`{`, "unexpected EOF"},
		"no object":  {`{"type":"ADDED","object":1}`, "not a Kubernetes object"},
		"wrong flag": {``, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			var args []string
			if name == "wrong flag" {
				args = []string{"-control-plane-address=localhost:1", "-ca=missing"}
			}
			err := run(context.Background(), args, strings.NewReader(c.watch), new(bytes.Buffer))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one about %q", err, c.want)
			}
		})
	}
}
