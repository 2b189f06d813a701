package httpmtls_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// The end of an idle connection is noticed without a request, except for those that the forwarder
// closes at its own end.
func TestDisconnected(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol string) {
		t.Helper()

		ends := newPKI(t)
		end := newFarEnd(t, ends.server, accept)
		ended := make(chan string, 10)
		opts := unhurried(protocol)
		opts.Hooks.Disconnected = func(hook.Disconnection) { ended <- protocol }
		forwarder := newForwarder(t, ends.client, end.address(), opts)
		mustForward(t, forwarder, event("object"))
		end.CloseClientConnections()
		receive(t, ended)
		mustForward(t, forwarder, event("object"))
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

	ends := newPKI(t)
	for address, want := range map[string]string{
		"127.0.0.1:1": "dial",
		newFarEnd(t, ends.server, accept).address(): "",
	} {
		reasons := make(chan string, 10)
		connected := func(c hook.Connection) {
			if c.Err == nil {
				reasons <- ""
				return
			}
			reasons <- string(core.ReasonOf(c.Err))
		}

		forwarder := newForwarder(t, ends.client, address, httpmtls.Options{
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
	reached := make(chan struct{})
	proceed := make(chan struct{})
	result := make(chan error, 1)
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

	check(t, forwarder.Close())
	close(proceed)
	if n, err := far.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes of a handshake, want a closed connection", n)
	}

	_ = far.Close() // The other end is closed.
}

// A server remembers no header of the requests (RFC 7541, section 6.3): the first block begins with
// an update of the table to 1 byte.
func TestRequestsNeedNoHeaderTable(t *testing.T) {
	t.Parallel()

	ends := newPKI(t)
	socket := must(net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}))
	defer socket.Close()
	forwarder := newForwarder(t, ends.client, socket.Addr().String(), httpmtls.Options{Retries: -1})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- forwarder.Forward(ctx, manager, core.NewBatch(event("a"))) }()
	conn := tls.Server(must(socket.Accept()), keys.ServerTLSConfig(ends.server))
	defer conn.Close()
	const sizeUpdate = 0x20 | 1
	if block := must(headerBlock(conn)); block[0] != sizeUpdate {
		t.Errorf("the header block begins with %#x, want %#x", block[0], sizeUpdate)
	}

	stop()
	if err := <-ended; err == nil {
		t.Error("a request without an answer succeeded")
	}
}

// headerBlock returns the payload of the first frame with headers (RFC 9113, sections 3.4 and 6.2).
func headerBlock(from io.Reader) ([]byte, error) {
	const preface, headersType = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 1
	if _, err := io.ReadFull(from, make([]byte, len(preface))); err != nil {
		return nil, err
	}

	for {
		var head [9]byte
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return nil, err
		}

		payload := make([]byte, binary.BigEndian.Uint32(append([]byte{0}, head[:3]...)))
		if _, err := io.ReadFull(from, payload); err != nil || head[3] == headersType {
			return payload, err
		}
	}
}
