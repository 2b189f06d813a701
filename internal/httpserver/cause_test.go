package httpserver

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// failure is a call of HandshakeFailed.
type failure struct {
	cause, remote string
	err           error
}

// failures collects calls of HandshakeFailed.
type failures chan failure

func (f failures) add(cause string, remote net.Addr, err error) {
	f <- failure{cause, remote.String(), err}
}

// Each way in which a handshake fails has its cause.
func TestHandshakeCauses(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	other := newAuthority(t)
	good := ca.issue(t)
	foreign := other.issue(t)
	refused := errors.New("refused")
	refuse := func(tls.ConnectionState) error { return refused }
	server := func(change func(*tls.Config)) *tls.Config {
		config := &tls.Config{
			Certificates: []tls.Certificate{ca.issue(t)},
			ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
		}
		change(config)
		return config
	}
	client := func(cert *tls.Certificate, change func(*tls.Config)) func(*testing.T, net.Conn) {
		return func(t *testing.T, conn net.Conn) {
			t.Helper()
			config := &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1"}
			if cert != nil {
				config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
					return cert, nil
				}
			}
			change(config)
			_ = tls.Client(conn, config).HandshakeContext(t.Context()) // The server's result counts.
			_, _ = io.Copy(io.Discard, conn)
		}
	}
	unchanged := func(*tls.Config) {}
	version12 := func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }
	allow12 := func(c *tls.Config) { c.MinVersion = tls.VersionTLS12 }
	refusing := func(c *tls.Config) { c.VerifyConnection = refuse }
	otherCA := func(c *tls.Config) { c.RootCAs = other.Pool() }
	otherName := func(c *tls.Config) { c.ServerName = "other" }
	tests := []struct {
		name   string
		server *tls.Config
		client func(*testing.T, net.Conn)
		want   string
	}{
		{"no certificate", server(unchanged), client(nil, unchanged), causeNoCertificate},
		{"no certificate, TLS 1.2", server(allow12), client(nil, version12), causeNoCertificate},
		{"certificate of another CA", server(unchanged), client(&foreign, unchanged), causeUntrusted},
		{"refused by VerifyConnection", server(refusing), client(&good, unchanged), causeUntrusted},
		{
			"refused by VerifyPeerCertificate",
			server(func(c *tls.Config) {
				c.VerifyPeerCertificate = func([][]byte, [][]*x509.Certificate) error { return refused }
			}),
			client(&good, unchanged), causeUntrusted,
		},
		{"server of another CA", server(unchanged), client(&good, otherCA), causeBadCertificate},
		{"server of another name", server(unchanged), client(&good, otherName), causeBadCertificate},
		{"server of another CA, refused by OpenSSL", server(unchanged), openSSL(client(&good, otherCA)), causeBadCertificate},
		{"no common version", server(unchanged), client(&good, version12), causeProtocol},
		{"plain HTTP", server(unchanged), sends("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), causeProtocol},
		{"noise", server(unchanged), sends("\x16\x03\x01\x00\x05hello"), causeProtocol},
		{"no key material", server(func(c *tls.Config) {
			c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, refused }
		}), client(&good, unchanged), causeOther},
		{"half a hello", server(unchanged), leaves("\x16\x03\x01"), causeClosed},
		{"silence after a byte", server(unchanged), sends("\x16"), causeTimeout},
		{"silence", server(unchanged), sends(""), causeTimeout},
		{"a probe", server(unchanged), leaves(""), ""},
		{"a probe that resets", server(unchanged), resets, ""},
		{"a good client", server(unchanged), connects(ca, good), ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			timeout := time.Minute
			if test.want == causeTimeout {
				timeout = 300 * time.Millisecond
			}
			seen := make(failures, 2)
			r := run(t, noContent, Options{
				TLS: test.server, HandshakeFailed: seen.add, ReadHeaderTimeout: timeout,
			})
			conn := r.dial(t)
			test.client(t, conn)
			_ = conn.Close()
			if test.want != "" {
				have := <-seen
				if have.cause != test.want || have.err == nil || have.remote != conn.LocalAddr().String() {
					t.Errorf("failed: %+v, want %s from %s", have, test.want, conn.LocalAddr())
				}
			}
			// Connections are accepted in order, and Serve waits for all callbacks: nothing else
			// follows.
			last := r.dial(t)
			sends("noise")(t, last)
			if have := <-seen; have.remote != last.LocalAddr().String() {
				t.Errorf("unexpected failure: %+v", have)
			}
			check(t, r.stop())
			if len(seen) > 0 {
				t.Errorf("unexpected failure: %+v", <-seen)
			}
		})
	}
}

// connects returns a client with a certificate that completes its handshake.
func connects(ca *authority, cert tls.Certificate) func(*testing.T, net.Conn) {
	return func(t *testing.T, conn net.Conn) {
		t.Helper()
		config := &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1", Certificates: []tls.Certificate{cert}}
		if err := tls.Client(conn, config).HandshakeContext(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// openSSL returns a client that refuses a certificate with an alert that is not encrypted, as
// OpenSSL 3.0 does.
func openSSL(client func(*testing.T, net.Conn)) func(*testing.T, net.Conn) {
	return func(t *testing.T, conn net.Conn) {
		t.Helper()
		client(t, &plainAlert{Conn: conn})
	}
}

// plainAlert replaces all that follows the first message.
type plainAlert struct {
	net.Conn

	greeted bool
}

func (c *plainAlert) Write(b []byte) (int, error) {
	if !c.greeted {
		c.greeted = true
		return c.Conn.Write(b)
	}
	_, err := c.Conn.Write([]byte{21, 3, 3, 0, 2, 2, 48})
	return len(b), err
}

// sends returns a client that sends text and waits until the server closes the connection.
func sends(text string) func(*testing.T, net.Conn) {
	return func(_ *testing.T, conn net.Conn) {
		_, _ = io.WriteString(conn, text)
		_, _ = io.Copy(io.Discard, conn)
	}
}

// leaves returns a client that sends text and closes the connection.
func leaves(text string) func(*testing.T, net.Conn) {
	return func(_ *testing.T, conn net.Conn) {
		_, _ = io.WriteString(conn, text)
		_ = conn.Close()
	}
}

func resets(_ *testing.T, conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
}

// There is one line a minute for each cause, however many handshakes fail.
func TestFailedHandshakesAreLogged(t *testing.T) {
	t.Parallel()
	var lines log
	seen := make(failures, 10)
	ca := newAuthority(t)
	r := run(t, noContent, Options{
		TLS:             &tls.Config{Certificates: []tls.Certificate{ca.issue(t)}},
		HandshakeFailed: seen.add, Logger: newLogger(&lines),
	})
	for range 3 {
		sends("GET / HTTP/1.1\r\n\r\n")(t, r.dial(t))
		<-seen
	}
	leaves("\x16")(t, r.dial(t))
	<-seen
	check(t, r.stop())
	have := lines.lines()
	if len(have) != 2 {
		t.Fatalf("%d lines, want one for each of two causes:\n%s", len(have), strings.Join(have, "\n"))
	}
	line := have[slices.IndexFunc(have, func(l string) bool { return !strings.Contains(l, "cause=closed") })]
	for _, want := range []string{"level=WARN", "cause=protocol", "remote=127.0.0.1:", "error=", "suppressed=0"} {
		if !strings.Contains(line, want) {
			t.Errorf("no %s in %s", want, line)
		}
	}
}

// A handshake that this server ends for its limit is not reported as failed.
func TestDisplacedHandshakeHasNotFailed(t *testing.T) {
	t.Parallel()
	seen := make(failures, 2)
	closed := make(chan string, 2)
	r := run(t, noContent, Options{
		TLS:            &tls.Config{Certificates: []tls.Certificate{newAuthority(t).issue(t)}},
		MaxConnections: 1, HandshakeFailed: seen.add, ConnectionClosed: func(reason string) { closed <- reason },
	})
	displaced := r.dial(t)
	_, _ = io.WriteString(displaced, "\x16")
	other := r.dial(t)
	if reason := <-closed; reason != reasonDisplaced {
		t.Errorf("the first connection was closed as %q, want %q", reason, reasonDisplaced)
	}
	sends("noise")(t, other)
	if have := <-seen; have.remote != other.LocalAddr().String() {
		t.Errorf("unexpected failure: %+v", have)
	}
	if err := r.stop(); err != nil || len(seen) > 0 {
		t.Errorf("Serve returned %v, and %d more handshakes failed, want none", err, len(seen))
	}
}

// Serve returns after its last callback has returned.
func TestServeWaitsForCallbacks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		incoming := newNetwork()
		called := make(chan struct{})
		returned := false
		r := run(t, noContent, Options{
			Listener: incoming, TLS: &tls.Config{Certificates: []tls.Certificate{newAuthority(t).issue(t)}},
			HandshakeFailed: func(string, net.Addr, error) {
				close(called)
				time.Sleep(time.Second)
				returned = true
			},
		})
		near, far := net.Pipe()
		incoming.accepted <- far
		sends("noise")(t, near)
		<-called
		if err := r.stop(); err != nil || !returned {
			t.Errorf("Serve returned %v while a callback ran", err)
		}
	})
}

// clientHello is the beginning of a message of n bytes, in records (RFC 8446, sections 4 and 5.1).
func clientHello(n int) []byte {
	const record = 1 << 14
	message := append([]byte{1, 0, byte(n >> 8), byte(n)}, make([]byte, n)...)
	var out []byte
	for len(message) > 0 {
		size := min(len(message), record)
		out = append(append(out, 22, 3, 1, byte(size>>8), byte(size)), message[:size]...)
		message = message[size:]
	}
	return out
}

// A handshake of 64 KiB on each connection would be the memory of a small process.
func TestALargeHandshakeIsCutOff(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	seen := make(failures, 1)
	r := run(t, noContent, Options{
		TLS: &tls.Config{Certificates: []tls.Certificate{ca.issue(t)}}, MaxHandshakeBytes: 32 << 10, HandshakeFailed: seen.add,
	})
	_, _ = r.dial(t).Write(clientHello(1<<16 - 1)[:40<<10]) // The server may close the connection meanwhile.
	if f := <-seen; f.cause != causeProtocol {              // Not that of the timeout.
		t.Errorf("cause %s (%v), want %s", f.cause, f.err, causeProtocol)
	}
}

// The limit is for the handshake and the first header, not for a body that follows in the same
// segment.
func TestALargeBodyAfterTheFirstHeaderIsRead(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	ca := newAuthority(t)
	r := run(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); n != size || err != nil {
			t.Errorf("read %d bytes, %v", n, err)
		}
		w.WriteHeader(http.StatusNoContent)
	}), Options{TLS: &tls.Config{Certificates: []tls.Certificate{ca.issue(t)}}, MaxHandshakeBytes: 32 << 10})
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: ca.Pool(), NextProtos: []string{"http/1.1"}, DynamicRecordSizingDisabled: true}}
	conn := must(dialer.DialContext(t.Context(), "tcp", r.Addr().String()))(t)
	defer conn.Close()
	request := "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4194304\r\n\r\n"
	if _, err := conn.Write(append([]byte(request), make([]byte, size)...)); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 64)
	if n, err := conn.Read(answer); err != nil || !bytes.Contains(answer[:n], []byte("204")) {
		t.Errorf("answer %q, %v", answer[:n], err)
	}
}

// A panic in a goroutine of the handshake would end the process, at the wish of a client.
func TestAPanicOfACallbackCostsItsConnection(t *testing.T) {
	t.Parallel()
	var lines log
	var calls atomic.Int32
	ca := newAuthority(t)
	seen := make(failures, 2)
	certificate := ca.issue(t)
	r := run(t, noContent, Options{HandshakeFailed: seen.add, Logger: newLogger(&lines), TLS: &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if calls.Add(1) == 1 {
				panic("no key")
			}
			return &certificate, nil
		},
	}})
	client := newClient(t, &tls.Config{RootCAs: ca.Pool()})
	if status, err := r.get(t, client); err == nil {
		t.Errorf("status %d, want a closed connection", status)
	}
	if status, err := r.get(t, client); status != http.StatusNoContent || err != nil {
		t.Errorf("status %d, %v", status, err)
	}
	client.CloseIdleConnections()
	if err := r.stop(); err != nil || len(seen) != 1 || (<-seen).cause != causeOther {
		t.Errorf("error %v, want one failure that is reported", err)
	}
	line := strings.Join(lines.lines(), "\n")
	for _, want := range []string{"level=ERROR", "cause=panic", "no key", "cause_test.go"} {
		if !strings.Contains(line, want) {
			t.Errorf("no %s in %s", want, line)
		}
	}
}
