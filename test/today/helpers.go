package today

import (
	"context"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// Roots follows ca.crt of the gateway's Secret until ctx ends.
func Roots(ctx context.Context, plane client.Client) func() *x509.CertPool {
	var current atomic.Pointer[x509.CertPool]
	read := func() {
		var secret corev1.Secret
		if plane.Get(ctx, GatewaySecret(), &secret) == nil {
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(secret.Data["ca.crt"])
			current.Store(pool)
		}
	}
	read()
	go func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			select {
			case <-tick.C:
				read()
			case <-ctx.Done():
			}
		}
	}()
	return current.Load
}
