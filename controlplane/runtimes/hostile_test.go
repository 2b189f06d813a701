package runtimes_test

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
)

// connectTo connects to an API server that is not one.
func connectTo(t *testing.T, server *httptest.Server, opts runtimes.KubeconfigOptions) client.Client {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	text := strings.Replace(kubeconfig, `"https://192.0.2.1"`, `"`+server.URL+`", certificate-authority-data: `+
		base64.StdEncoding.EncodeToString(ca), 1)
	c, err := connectWith(t, text, opts)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func getDeployment(ctx context.Context, c client.Client) error {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("apps/v1")
	object.SetKind("Deployment")
	return c.Get(ctx, client.ObjectKey{Namespace: "default", Name: "agent"}, object)
}

// The address of a kubeconfig was validated, and that of a redirect was not. Plain text and
// addresses inside the control plane are among them.
func TestKubeconfigsFollowNoRedirects(t *testing.T) {
	var asked atomic.Int32
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer inside.Close()
	server := httptest.NewTLSServer(http.RedirectHandler(inside.URL, http.StatusTemporaryRedirect))
	defer server.Close()
	if err := getDeployment(t.Context(), connectTo(t, server, runtimes.KubeconfigOptions{})); err == nil {
		t.Error("a redirect is an answer")
	}
	if asked.Load() != 0 {
		t.Error("a runtime made the operator send a request to an address of its choice")
	}
}

func TestKubeconfigsBoundAnswers(t *testing.T) {
	var sent atomic.Int64
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		const most = 64 << 20
		for part := strings.Repeat(" ", 1<<20); sent.Load() < most; sent.Add(int64(len(part))) {
			if _, err := io.WriteString(w, part); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	err := getDeployment(t.Context(), connectTo(t, server, runtimes.KubeconfigOptions{}))
	if err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("got %v, want an error about the size", err)
	}
}

// A client of controller-runtime keeps each warning to log it once, by default.
func TestKubeconfigsIgnoreWarnings(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	var config *rest.Config
	connectTo(t, server, runtimes.KubeconfigOptions{Configure: func(c *rest.Config) { config = c }})
	if config.WarningHandlerWithContext != (rest.NoWarnings{}) {
		t.Errorf("warnings of a runtime go to %T", config.WarningHandlerWithContext)
	}
}
