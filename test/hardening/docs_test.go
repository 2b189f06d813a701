package hardening

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// TestClaimsNameTests wants each test that docs/security.md names.
func TestClaimsNameTests(t *testing.T) {
	text := string(test.Read(t, "docs/security.md"))
	names := regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(text, -1)
	if len(names) < 10 {
		t.Fatalf("%d tests are named, want more", len(names))
	}
	cmd := exec.CommandContext(t.Context(), "git", "grep", "-h", "^func Test", "--", "*_test.go")
	cmd.Dir = test.Root()
	tests, err := cmd.Output()
	if err != nil {
		lab.Missing(t, "needs git and its repository (Debian: git): %v", err)
	}
	for _, name := range names {
		if !strings.Contains(string(tests), "func "+name+"(") {
			t.Errorf("docs/security.md names %s, and there is no such test", name)
		}
	}
}
