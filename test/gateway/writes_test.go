package gateway_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// direct calls the webhook as an API server does, but more often. Its TLS trusts one bundle and
// nothing else. A new bundle is in use at once and means new connections. Package test/controlplane/chain has
// the writes of real API servers.
type direct struct {
	t      *testing.T
	url    string
	bundle []byte
	client atomic.Pointer[http.Client]
}

func newDirect(t *testing.T, webhook string) *direct {
	t.Helper()
	return &direct{t: t, url: "https://" + webhook + "/validate/" + component + "?timeout=10s"}
}

func (s *direct) trust(bundle []byte) {
	s.t.Helper()
	s.bundle = bundle
	s.reconnect()
}

func (s *direct) reconnect() {
	s.t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(s.bundle) {
		s.t.Fatal("no certificate in the bundle")
	}
	const writers = 8
	next := &http.Client{Timeout: patience, Transport: &http.Transport{
		MaxIdleConnsPerHost: writers,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool},
	}}
	if old := s.client.Swap(next); old != nil {
		old.CloseIdleConnections()
	}
}

// write is a write of the object in the runtime.
func (s *direct) write(ctx context.Context, object string) error {
	return lab.Ask(ctx, s.client.Load(), s.url, lab.Review(object, 1))
}
