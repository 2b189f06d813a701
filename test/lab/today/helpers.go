package today

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test"
)

// ImageEnv returns the variables of the image that takes the place of today's.
func ImageEnv(t testing.TB) (env []string) {
	t.Helper()
	text, err := os.ReadFile(test.Root() + "/deploy/dropin/agent.env")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			env = append(env, line)
		}
	}
	return env
}

// Serve serves a handler in plain HTTP, and returns its address. The test ends it.
func Serve(t testing.TB, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}
