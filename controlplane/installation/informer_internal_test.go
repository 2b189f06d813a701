package installation

import (
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/watchtest"
)

// An agent gets each field of a watch, except conditions, which need an API server.
func TestAgentsGetEachFieldOfAWatch(t *testing.T) {
	whole, changed := watchtest.Watches()
	setting := func(w watch.Watch) string { return watchersSetting([]watch.Watch{w}) }
	for path, w := range changed {
		if (setting(w) == setting(whole)) != strings.HasPrefix(path, ".Conditions") {
			t.Errorf("%s: a change has %s", path, setting(w))
		}
	}
}
