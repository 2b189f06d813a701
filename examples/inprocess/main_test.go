package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/runtime-watcher/runtime-watcher/internal/testcache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const want = `runtime        new image          accepted
runtime        same image         filtered
runtime        new image dry-run  filtered
control plane  reconcile          runtime-1, for default/demo
runtime        counts             {Accepted:1 Delivered:1 Coalesced:0 Dropped:map[] Pending:0}
`

func TestOutput(t *testing.T) {
	var out bytes.Buffer
	run(t.Context(), &out)
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

func TestDocumentsShowTheOutput(t *testing.T) {
	for _, document := range []string{"README.md", "../../README.md"} {
		text, err := os.ReadFile(testcache.Path(document))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "```\n"+want+"```\n") {
			t.Errorf("%s must contain:\n%s", document, want)
		}
	}
}
