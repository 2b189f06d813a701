package subresources

import (
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test"
)

// TestDocumentedWatchers reads every example of docs/reference/watcher.md that is no whole Watcher.
func TestDocumentedWatchers(t *testing.T) {
	text := string(test.Read(t, "docs/reference/watcher.md"))
	conditions := 0
	for _, block := range strings.Split(text, "```yaml\n")[1:] {
		example, _, _ := strings.Cut(block, "```")
		if !strings.HasPrefix(example, "spec:") {
			continue
		}
		for _, watch := range watches(t, selected, "metadata: {name: example}\n"+example) {
			conditions += len(watch.Conditions)
		}
	}
	if conditions != 3 {
		t.Errorf("the examples have %d conditions, want 3", conditions)
	}
}
