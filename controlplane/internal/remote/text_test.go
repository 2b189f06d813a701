package remote_test

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
)

func TestManagersAreValidAndFew(t *testing.T) {
	names := []string{"b", "", "A", "b", "a/b", strings.Repeat("a", 64), "a"}
	if have, want := remote.Managers(slices.Values(names)), []core.Manager{"b", "a"}; !slices.Equal(have, want) {
		t.Errorf("got %q, want %q", have, want)
	}

	many := func(yield func(string) bool) {
		for n := range 1000 {
			if !yield(strconv.Itoa(n)) {
				return
			}
		}
	}
	if have := remote.Managers(many); len(have) != 100 {
		t.Errorf("%d managers, want 100", len(have))
	}
}

func TestTextsAreCut(t *testing.T) {
	if have := remote.Text(strings.Repeat("\u00e4", 4000)); len(have) > 4010 || !strings.HasSuffix(have, "\u00e4…") {
		t.Errorf("%d bytes", len(have))
	}

	cause := errors.New(strings.Repeat("a", 5000))
	if err := remote.Error(cause); len(err.Error()) > 4010 || !errors.Is(err, cause) {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
	if remote.Token(strings.Repeat("a", 65)) != "" || remote.Token("a") != "a" || remote.Error(nil) != nil {
		t.Error("short texts are changed, or long ones kept")
	}
}
