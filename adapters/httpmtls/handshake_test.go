package httpmtls_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// resolverOf answers each question for an IPv4 address with all addresses, in that order.
func resolverOf(t *testing.T, addresses ...string) *net.Resolver {
	t.Helper()

	server := must(net.ListenPacket("udp", "127.0.0.1:0"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		query := make([]byte, 512)
		for {
			n, from, err := server.ReadFrom(query)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(dnsAnswer(query[:n], addresses), from)
		}
	}()

	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}

// dnsAnswer is a response to a query with one question (RFC 1035, section 4).
func dnsAnswer(query []byte, addresses []string) []byte {
	const header, typeA = 12, 1
	end := header + bytes.IndexByte(query[header:], 0) + 1
	question := query[header : end+4]
	answer := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, question...)
	if binary.BigEndian.Uint16(query[end:]) != typeA {
		return answer
	}

	for _, address := range addresses {
		answer = append(answer, 0xc0, header, 0, typeA, 0, 1, 0, 0, 0, 60, 0, 4)
		answer = append(answer, net.ParseIP(address).To4()...)
	}

	answer[7] = byte(len(addresses))
	return answer
}

// logBuffer may be written and read concurrently.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// silentAt accepts connections, and answers nothing to a ClientHello.
func silentAt(t *testing.T, address string) (accepted chan struct{}) {
	t.Helper()

	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Skipf("no second address on the loopback: %v", err)
	}

	accepted = make(chan struct{}, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var conns []net.Conn
		for {
			conn, err := listener.Accept()
			if err != nil {
				break
			}
			conns = append(conns, conn)
			accepted <- struct{}{} //nolint:revive // A channel is made to be shared.
		}

		for _, conn := range conns {
			_ = conn.Close()
		}
	}()

	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return accepted
}

// Of two addresses of a name, one accepts TCP and never answers in TLS. The other is dialled next,
// whichever comes first, and the error and the log name the silent address.
func TestTheNextAddressIsDialledAfterAHandshake(t *testing.T) {
	t.Parallel()

	p := newPKI(t)
	for name, order := range map[string][]string{
		"the silent one first": {"127.0.0.2", "127.0.0.1"}, "the silent one last": {"127.0.0.1", "127.0.0.2"},
	} {
		eachProtocol(t, func(t *testing.T, protocol string) {
			t.Helper()

			end := newFarEnd(t, p.server, accept)
			_, port, _ := net.SplitHostPort(end.address())
			silent := silentAt(t, "127.0.0.2:"+port)
			log := &logBuffer{}
			forwarder := newForwarder(t, p.client, "kcp.test:"+port, httpmtls.Resolver(httpmtls.Options{
				Protocol: protocol, ServerName: "127.0.0.1", DialTimeout: time.Second,
				Logger: slog.New(slog.NewTextHandler(log, nil)),
			}, resolverOf(t, order...)))

			err := forward(t, forwarder, event("first"))
			if len(silent) == 0 {
				if err != nil {
					t.Errorf("%s: %v, and the silent address was not dialled", name, err)
				}
				return
			}

			for _, want := range []string{"127.0.0.2:" + port, "tlsmlkem=0"} {
				if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(log.String(), want) {
					t.Errorf("%s: %v and log %s, want both to name %s", name, err, log, want)
				}
			}

			if core.ReasonOf(err) != "timeout" {
				t.Errorf("%s: reason %s", name, core.ReasonOf(err))
			}

			for range 3 {
				if err := forward(t, forwarder, event("object")); err != nil {
					t.Errorf("%s: %v, want the other address", name, err)
				}
			}

			if n := len(silent); n != 1 {
				t.Errorf("%s: the silent address was dialled %d times, want 1", name, n)
			}
		})
	}
}

// When no address answers, each is dialled again and again, so that the first to come back is
// found.
func TestEachAddressGetsItsTurn(t *testing.T) {
	t.Parallel()

	p := newPKI(t)
	end := httptest.NewUnstartedServer(nil)
	_, port, _ := net.SplitHostPort(end.Listener.Addr().String())
	_ = end.Listener.Close()
	first := silentAt(t, "127.0.0.1:"+port)
	second := silentAt(t, "127.0.0.2:"+port)
	forwarder := newForwarder(t, p.client, "kcp.test:"+port, httpmtls.Resolver(httpmtls.Options{
		DialTimeout: 100 * time.Millisecond,
	}, resolverOf(t, "127.0.0.1", "127.0.0.2")))
	for range 4 {
		if err := forward(t, forwarder, event("object")); core.ReasonOf(err) != "timeout" {
			t.Errorf("%v, want a timeout", err)
		}
	}

	if len(first) != 2 || len(second) != 2 {
		t.Errorf("dialled %d and %d times, want each twice", len(first), len(second))
	}
}

// A certificate of another name at one address is no reason to stay there either.
func TestTheNextAddressIsDialledAfterAWrongCertificate(t *testing.T) {
	t.Parallel()

	p := newPKI(t)
	strangers := newPKI(t)
	end := newFarEnd(t, p.server, accept)
	_, port, _ := net.SplitHostPort(end.address())
	stranger := httptest.NewUnstartedServer(nil)
	_ = stranger.Listener.Close()
	var err error
	if stranger.Listener, err = net.Listen("tcp", "127.0.0.2:"+port); err != nil {
		t.Skipf("no second address on the loopback: %v", err)
	}

	stranger.TLS = keys.ServerTLSConfig(strangers.server)
	stranger.Config.ErrorLog = end.Config.ErrorLog
	stranger.StartTLS()
	t.Cleanup(stranger.Close)
	forwarder := newForwarder(t, p.client, "kcp.test:"+port, httpmtls.Resolver(httpmtls.Options{ServerName: "127.0.0.1"},
		resolverOf(t, "127.0.0.2", "127.0.0.1")))
	err = forward(t, forwarder, event("first"))
	if core.ReasonOf(err) != "tls_verify" || !strings.Contains(err.Error(), "127.0.0.2:"+port) || strings.Contains(err.Error(), "mlkem") {
		t.Errorf("%v (%s), want the address of the wrong certificate", err, core.ReasonOf(err))
	}
	if err := forward(t, forwarder, event("second")); err != nil {
		t.Errorf("%v, want the other address", err)
	}
}
