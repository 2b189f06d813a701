package main

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// rotating is key material that a test replaces.
type rotating struct {
	atomic.Pointer[keys.Material]
}

func (r *rotating) Material() (*keys.Material, error) { return r.Load(), nil }

// TestRemovedCALosesItsConnection holds that the removal of a CA also concerns open connections.
func TestRemovedCALosesItsConnection(t *testing.T) {
	pki, err := newPKI()
	if err != nil {
		t.Fatal(err)
	}
	material := &rotating{}
	material.Store(pki.material)
	url := serveWith(t, pki, material)
	client := clientOf(t, pki)
	if status := post(t, client, url); status != http.StatusOK {
		t.Fatalf("with a trusted CA: status %d, want 200", status)
	}
	material.Store(&keys.Material{Certificate: pki.material.Certificate, Roots: pki.another.Pool()})
	if status := post(t, client, url); status != http.StatusUnauthorized {
		t.Errorf("with a removed CA: status %d, want 401", status)
	}
}

// serveWith returns the address for events of contract v2.
func serveWith(t *testing.T, pki *pki, material keys.Source) string {
	t.Helper()
	s := newScene(pki, verifier)
	leader, err := s.start(t.Context(), "replica-1", material, verifier, listener.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := leader.stop(); err != nil {
			t.Error(err)
		}
	})
	if err := leader.lead(t.Context()); err != nil {
		t.Fatal(err)
	}
	return "https://" + leader.addr + "/v2/" + string(myOperator) + "/event"
}

// clientOf returns a client of runtime-a that dials once.
func clientOf(t *testing.T, pki *pki) *http.Client {
	t.Helper()
	leaf, err := pki.ours.Client("runtime-a", testpki.Options{DNSNames: []string{"a.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	certificate := leaf.TLS()
	transport := &http.Transport{TLSClientConfig: pki.client(&certificate)}
	var dials atomic.Int64
	transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if dials.Add(1) > 1 {
			t.Error("the connection was not reused")
		}
		return (&tls.Dialer{Config: transport.TLSClientConfig}).DialContext(ctx, network, address)
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

func post(t *testing.T, client *http.Client, url string) int {
	t.Helper()
	const event = `{"watched":{"Namespace":"default","Name":"demo"},
		"watchedGvk":{"group":"apps","version":"v1","kind":"Deployment"}}`
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(event))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	return answer.StatusCode
}
