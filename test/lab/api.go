package lab

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// API sends plain HTTP requests to an API server. It is safe for concurrent use.
type API struct {
	client *http.Client
	url    string
}

// NewAPI returns an API with the rights of an administrator.
func NewAPI(t testing.TB, plane *apiserver.ControlPlane) *API {
	t.Helper()
	client, err := rest.HTTPClientFor(plane.Config)
	NoError(t, err)
	return &API{client: client, url: strings.TrimSuffix(plane.Config.Host, "/")}
}

// Do sends one request, and returns the status and the body of the answer.
func (a *API) Do(t testing.TB, method, path, contentType, body string) (status int, answer []byte) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, a.url+path, strings.NewReader(body))
	NoError(t, err)
	request.Header.Set("Content-Type", contentType)
	response, err := a.client.Do(request)
	NoError(t, err)
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	NoError(t, err)
	return response.StatusCode, answer
}

// ScrapeAPIServer returns the metrics of an API server, in the exposition format.
func ScrapeAPIServer(t testing.TB, plane *apiserver.ControlPlane) []byte {
	t.Helper()
	api := NewAPI(t, plane)
	defer api.client.CloseIdleConnections()
	status, text := api.Do(t, http.MethodGet, "/metrics", "", "")
	if status != http.StatusOK {
		t.Fatalf("metrics: %d: %s", status, text)
	}
	return text
}
