package httpserver

import (
	"bytes"
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

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
	ca, seen := newAuthority(t), make(failures, 1)
	r := run(t, noContent, Options{
		TLS: &tls.Config{Certificates: []tls.Certificate{ca.issue(t)}}, MaxHandshakeBytes: 32 << 10, HandshakeFailed: seen.add,
	})
	_, _ = r.dial(t).Write(clientHello(1<<16 - 1)[:40<<10]) // The server may close the connection meanwhile.
	if f := <-seen; f.cause != causeProtocol {              // Not that of the timeout.
		t.Errorf("cause %s (%v), want %s", f.cause, f.err, causeProtocol)
	}
}

// A panic in a goroutine of the handshake would end the process, at the wish of a client.
func TestAPanicOfACallbackCostsItsConnection(t *testing.T) {
	t.Parallel()
	var lines log
	var calls atomic.Int32
	ca, seen := newAuthority(t), make(failures, 2)
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
	for _, want := range []string{"level=ERROR", "cause=panic", "no key", "handshake_test.go"} {
		if !strings.Contains(line, want) {
			t.Errorf("no %s in %s", want, line)
		}
	}
}

// The limit is for the handshake and the first header, not for a body that follows in the same segment.
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
	conn, err := dialer.DialContext(t.Context(), "tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
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
