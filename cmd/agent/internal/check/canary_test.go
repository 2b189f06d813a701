package check

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// An API server without a webhook to call, and an API server that cannot reach the pods, need
// different actions.
func TestTheConfigurationTellsWhyNoAgentIsCalled(t *testing.T) {
	const (
		ofCanary  = `{"webhooks": [{"clientConfig": {"service": {"name": "a", "path": "/canary"}}}]}`
		byURL     = `{"webhooks": [{"clientConfig": {"url": "https://agent.example/canary"}}]}`
		withoutIt = `{"webhooks": [{"clientConfig": {"service": {"name": "a", "path": "/validate/kyma"}}}, {}]}`
		apply     = "apply the webhook configuration with --canary"
	)
	for name, c := range map[string]struct {
		configuration string // in JSON, empty: none
		setting       string
		status        int // of the read
		want          string
	}{
		"missing":      {"", "watcher", http.StatusNotFound, "runs here: the webhook configuration watcher is missing; want a call; " + apply},
		"empty":        {`{}`, "watcher", http.StatusOK, "runs here: the webhook configuration watcher has no webhooks; want a call; " + apply},
		"no canary":    {withoutIt, "watcher", http.StatusOK, "watcher has no webhook for the canary; want a call; " + apply},
		"unreachable":  {ofCanary, "watcher", http.StatusOK, "watcher has the webhook of the canary; want a call; act on the line webhooks"},
		"by a URL":     {byURL, "watcher", http.StatusOK, "check the firewall and the network policy"},
		"no right":     {"", "watcher", http.StatusForbidden, "one runs here; want a call; " + apply + ", and check its caBundle"},
		"no JSON":      {"[", "watcher", http.StatusOK, "one runs here; want a call; " + apply + ", and check its caBundle"},
		"no such name": {"", "", http.StatusNotFound, "one runs here; want a call; " + apply + ", and check its caBundle"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte(`{"webhookFailures": 0}`))
			}))
			defer agent.Close()

			checker, out := newCanaryChecker(t, c.status, c.configuration)
			checker.opts.MetricsAddress = strings.TrimPrefix(agent.URL, "http://")
			checker.opts.Webhook.Configuration = c.setting
			checker.opts.Canary.Lease = types.NamespacedName{Namespace: "watcher", Name: "canary"}

			checker.checkCanary(t.Context())
			if !strings.Contains(out.String(), "FAIL  webhook ") || !strings.Contains(out.String(), c.want) {
				t.Errorf("the check prints\n%s\nwant a failure of the webhook with %q", out, c.want)
			}
		})
	}
}

// newCanaryChecker returns a checker with an API server that calls no agent, and its output. The API
// server answers all requests with the status and the body, except the patch of the Lease.
func newCanaryChecker(t *testing.T, status int, body string) (*checker, *strings.Builder) {
	t.Helper()

	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch { // The Lease of the canary, without a warning.
			_, _ = w.Write([]byte(`{}`))
			return
		}

		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))

	t.Cleanup(api.Close)

	folder := t.TempDir()
	write := func(name string, text []byte) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}

		return path
	}

	out := &strings.Builder{}
	checker := &checker{report: &report{out: out}}
	checker.opts.Canary.Server = api.URL
	checker.opts.Canary.TokenFile = write("token", []byte("token"))
	checker.opts.Canary.CAFile = write("ca.crt",
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw}))

	return checker, out
}
