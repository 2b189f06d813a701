package transport_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/examples/transport"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConformance is all that shows that an outbox can rely on the transport.
func TestConformance(t *testing.T) {
	coretest.TestForwarder(t, func(t *testing.T, farEnd *coretest.Recorder) coretest.ForwarderHarness {
		t.Helper()
		end := listen(t, farEnd.Forward)
		return coretest.ForwarderHarness{Forwarder: end.forwarder, Disconnect: end.close}
	}, coretest.ForwarderOptions{})
}

// farEnd serves connections until the test ends.
type farEnd struct {
	forwarder transport.Forwarder
	close     func()
}

func listen(t *testing.T, handle core.ForwarderFunc) farEnd {
	t.Helper()
	ca := must(testpki.NewCA("ca", testpki.Options{}))
	port := must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	server := tls.NewListener(port, mutual(ca, must(ca.Server("control-plane", testpki.Options{}))))
	var serving sync.WaitGroup
	serving.Go(func() { accept(t.Context(), server, handle, &serving) })
	end := farEnd{
		close: sync.OnceFunc(func() { _ = server.Close() }),
		forwarder: func(ctx context.Context) (net.Conn, error) {
			dialer := tls.Dialer{Config: mutual(ca, must(ca.Client("runtime-1", testpki.Options{})))}
			return dialer.DialContext(ctx, "tcp", port.Addr().String())
		},
	}
	t.Cleanup(func() { end.close(); serving.Wait() })
	return end
}

func accept(ctx context.Context, from net.Listener, handle core.ForwarderFunc, serving *sync.WaitGroup) {
	for {
		conn, err := from.Accept()
		if err != nil {
			return
		}
		serving.Go(func() { _ = transport.Serve(ctx, conn, handle) }) // The forwarder reports a broken connection.
	}
}

func mutual(ca *testpki.CA, leaf *testpki.Leaf) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{leaf.TLS},
		RootCAs: ca.Pool(), ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert, ServerName: "localhost",
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// A connection inside the process shows an answer on its way back.
func Example() {
	refuse := func(context.Context, core.Manager, core.Batch) error {
		return core.EventErrors{1: coretest.Refusal{Label: "forbidden", After: time.Minute, Cause: core.ErrForbidden}.Err()}
	}
	forwarder := transport.Forwarder(func(ctx context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		go func() { _ = transport.Serve(ctx, far, refuse) }()
		return near, nil
	})
	one := core.WatchEvent{Watched: types.NamespacedName{Namespace: "default", Name: "one"}}
	two := core.WatchEvent{Watched: types.NamespacedName{Namespace: "default", Name: "two"}}
	err := forwarder.Forward(context.Background(), "my-operator", core.NewBatch(one, two))
	some, _ := errors.AsType[core.EventErrors](err)
	fmt.Println(len(some), "of 2 events failed")
	fmt.Println("forbidden:", errors.Is(some[1], core.ErrForbidden), "retry after", core.RetryAfter(some[1]))
	// Output:
	// 1 of 2 events failed
	// forbidden: true retry after 1m0s
}
