package observability

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/test"
)

var update = flag.Bool("update", false, "write the generated files anew")

// TestReference fails when docs/reference/metrics.md is stale.
func TestReference(t *testing.T) {
	compare(t, "docs/reference/metrics.md", reference(t, catalog(t), newVocabulary(t)))
}

// compare compares a file of the repository with its generated text, or writes it.
func compare(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(filepath.Join(test.Root(), file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(read(t, file), text); diff != "" {
		t.Errorf("%s is stale, write it by go test ./test/observability -update (-file +generated):\n%s", file, diff)
	}
}
