package httpmtls_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// The end of an idle connection is noticed without a request, except for those that the forwarder
// closes at its own end.
func TestDisconnected(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol string) {
		t.Helper()
		keys := newPKI(t)
		end, ended := newFarEnd(t, keys.server, accept), make(chan string, 10)
		opts := unhurried(protocol)
		opts.Hooks.Disconnected = func() { ended <- protocol }
		forwarder := newForwarder(t, keys.client, end.address(), opts)
		if err := forward(t, forwarder, event("object")); err != nil {
			t.Fatal(err)
		}
		end.CloseClientConnections()
		receive(t, ended)
		if err := forward(t, forwarder, event("object")); err != nil {
			t.Fatal(err)
		}
		_ = forwarder.Close() // It returns nil.
		end.awaitOpen(t, 0)
		if len(ended) > 0 {
			t.Error("the end of the forwarder is reported as that of a connection")
		}
	})
}

// A metric of connections has the same results as the error of the request that needed one.
func TestConnectedHasTheReasonOfTheRequest(t *testing.T) {
	t.Parallel()
	keys := newPKI(t)
	for address, want := range map[string]string{
		"127.0.0.1:1": "dial",
		newFarEnd(t, keys.server, accept).address(): "",
	} {
		reasons := make(chan string, 10)
		connected := func(err error) {
			if err == nil {
				reasons <- ""
				return
			}
			reasons <- core.Reason(err)
		}
		forwarder := newForwarder(t, keys.client, address, httpmtls.Options{
			Retries: -1, Hooks: httpmtls.Hooks{Connected: connected},
		})
		_ = forward(t, forwarder, event("object"))
		if got := receive(t, reasons); got != want {
			t.Errorf("connection to %s: reason %q, want %q", address, got, want)
		}
	}
}

// A dial may outlast its request, and the forwarder. Its connection is closed without a handshake.
func TestDialOutlastsTheForwarder(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	reached, proceed, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	forwarder := newForwarder(t, newPKI(t).client, "kcp:443", httpmtls.Options{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			close(reached)
			<-proceed
			return near, nil
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { result <- forwarder.Forward(ctx, manager, core.NewBatch(event("object"))) }()
	receive(t, reached)
	cancel()
	if err := receive(t, result); !errors.Is(err, context.Canceled) {
		t.Errorf("have %v, want that it was cancelled", err)
	}
	if err := forwarder.Close(); err != nil {
		t.Fatal(err)
	}
	close(proceed)
	if n, err := far.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes of a handshake, want a closed connection", n)
	}
	_ = far.Close() // The other end is closed.
}
