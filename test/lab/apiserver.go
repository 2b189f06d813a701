package lab

import (
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// ScrapeAPIServer returns the metrics of an API server, in the exposition format.
func ScrapeAPIServer(t testing.TB, plane *apiserver.ControlPlane) []byte {
	t.Helper()
	client, err := rest.HTTPClientFor(plane.Config)
	NoError(t, err)
	defer client.CloseIdleConnections()
	text, err := getWith(t.Context(), client, strings.TrimSuffix(plane.Config.Host, "/")+"/metrics")
	NoError(t, err)
	return text
}

// Scrape returns the agent's metrics.
func (a *Agent) Scrape() []byte {
	a.t.Helper()
	text, err := a.get("/metrics")
	NoError(a.t, err)
	return text
}
