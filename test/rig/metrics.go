package rig

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/runtime-watcher/runtime-watcher/test/controlplane"
)

// APIServerMetrics returns the metrics of an API server.
func APIServerMetrics(t testing.TB, plane *controlplane.ControlPlane) []byte {
	t.Helper()

	client, err := rest.HTTPClientFor(plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.TrimSuffix(plane.Config.Host, "/")+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}

	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close() // The body is read.

	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("metrics of the API server: %s, %v", answer.Status, err)
	}

	return text
}
