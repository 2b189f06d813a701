package httpmtls_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

const (
	manager  = core.Manager("lifecycle-manager")
	runtime1 = "skr-1"

	// patience bounds the time of prompt operations on a busy machine.
	patience = 2 * time.Minute
)

const http2, http1 = "h2", "http/1.1"

var protocols = []string{http2, http1}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// pki is a CA with material for both ends.
type pki struct {
	ca             *testpki.CA
	client, server *keys.Material
}

func newPKI(t testing.TB) pki {
	t.Helper()
	ca := must(testpki.NewCA("test", testpki.Options{}))
	return pki{
		ca:     ca,
		client: material(t, must(ca.Client(runtime1, testpki.Options{})), ca),
		server: material(t, must(ca.Server("kcp", testpki.Options{})), ca),
	}
}

func material(t testing.TB, leaf *testpki.Leaf, cas ...*testpki.CA) *keys.Material {
	t.Helper()
	return must(keys.NewMaterial(testpki.Bundle(cas...), leaf.CertPEM, leaf.KeyPEM))
}

func event(name string) core.WatchEvent {
	return core.WatchEvent{
		Owner:      types.NamespacedName{Namespace: "kcp-system", Name: "kyma-1"},
		Watched:    types.NamespacedName{Namespace: "default", Name: name},
		WatchedGVK: schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"},
	}
}

// farEnd is a TLS server that counts its connections.
type farEnd struct {
	*httptest.Server

	connections atomic.Int64

	mu      sync.Mutex
	open    map[net.Conn]struct{}
	most    int           // that were ever open at once
	changed chan struct{} // closed when a connection is
}

// newFarEnd serves handler over TLS with a client certificate of source's CAs.
func newFarEnd(t testing.TB, source keys.Source, handler http.HandlerFunc) *farEnd {
	t.Helper()

	end := &farEnd{open: map[net.Conn]struct{}{}, changed: make(chan struct{})}
	end.Server = httptest.NewUnstartedServer(handler)
	end.EnableHTTP2 = true
	end.TLS = keys.ServerTLSConfig(source)
	end.Config.ErrorLog = log.New(io.Discard, "", 0)
	end.Config.ConnState = end.state
	end.StartTLS()
	t.Cleanup(end.Close)
	return end
}

func (e *farEnd) state(conn net.Conn, state http.ConnState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch state {
	case http.StateNew:
		e.connections.Add(1)
		e.open[conn] = struct{}{}
		e.most = max(e.most, len(e.open))
	case http.StateClosed, http.StateHijacked:
		delete(e.open, conn)
		close(e.changed)
		e.changed = make(chan struct{})
	case http.StateActive, http.StateIdle:
	}
}

// awaitOpen fails t if more connections stay open. Fewer may be open, see fewConnections.
func (e *farEnd) awaitOpen(t *testing.T, most int) {
	t.Helper()

	timeout := time.After(patience)
	for {
		e.mu.Lock()
		open := len(e.open)
		changed := e.changed
		e.mu.Unlock()
		if open <= most {
			return
		}

		select {
		case <-changed:
		case <-timeout:
			t.Errorf("%d connections stay open, want at most %d", open, most)
			return
		}
	}
}

func (e *farEnd) address() string { return e.Listener.Addr().String() }

func newForwarder(t testing.TB, source keys.Source, address string, opts httpmtls.Options) *httpmtls.Forwarder {
	t.Helper()
	return newForwarderOf(t, source, address, contract.V2, opts)
}

// newForwarderOf returns a forwarder that is closed after the test.
func newForwarderOf(
	t testing.TB, source keys.Source, address string, version contract.Version, opts httpmtls.Options,
) *httpmtls.Forwarder {
	t.Helper()
	forwarder := must(httpmtls.NewForwarder(source, address, version, opts))
	t.Cleanup(func() { _ = forwarder.Close() })
	return forwarder
}

// connect returns a far end with keys of its own, and a forwarder to it.
func connect(t testing.TB, handler http.HandlerFunc, opts httpmtls.Options) (*farEnd, *httpmtls.Forwarder) {
	t.Helper()
	ends := newPKI(t)
	end := newFarEnd(t, ends.server, handler)
	return end, newForwarder(t, ends.client, end.address(), opts)
}

func accept(writer http.ResponseWriter, request *http.Request) {
	_, _ = io.Copy(io.Discard, request.Body)
	if strings.HasPrefix(request.URL.Path, "/v3/") {
		writer.WriteHeader(http.StatusAccepted)
	}
}

func forward(t testing.TB, forwarder core.Forwarder, events ...core.WatchEvent) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return forwarder.Forward(ctx, manager, core.NewBatch(events...))
}

func mustForward(t testing.TB, forwarder core.Forwarder, event core.WatchEvent) {
	t.Helper()
	check(t, forward(t, forwarder, event))
}

// unhurried returns options with which a busy machine does not close connections.
func unhurried(protocol string) httpmtls.Options {
	return httpmtls.PingAfter(httpmtls.Options{
		Protocol: protocol, Timeout: patience, DialTimeout: patience, PingTimeout: time.Hour,
	}, time.Hour)
}

// failureOf returns the typed error of the only event that was sent.
func failureOf(t testing.TB, err error) *httpmtls.Error {
	t.Helper()
	if some, ok := errors.AsType[core.EventErrors](err); ok {
		err = some[0]
	}

	failure, ok := errors.AsType[*httpmtls.Error](err)
	if !ok {
		t.Fatalf("have %v (%T), want an *httpmtls.Error", err, err)
	}
	return failure
}

func eachProtocol(t *testing.T, test func(t *testing.T, protocol string)) {
	t.Helper()
	for _, protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			test(t, protocol)
		})
	}
}

// answerWith returns a handler that answers with a status.
func answerWith(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
}

// receive returns the next value of from, or fails the test.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		t.Fatal("nothing received")
	}

	panic("unreachable")
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
