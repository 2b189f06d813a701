package httpserver

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

// A handshake needs a large stack, which must not stay with its connection. The test runs alone, as
// it measures the process.
func TestHandshakesLeaveSmallStacks(t *testing.T) {
	const connections, most = 100, 12 << 10
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // A collection shrinks stacks.

	ca := newAuthority(t)
	r := run(t, noContent, Options{TLS: &tls.Config{
		Certificates: []tls.Certificate{ca.issue(t)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
	}})
	client := &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1", Certificates: []tls.Certificate{ca.issue(t)}}
	request := func() { exchangeHTTP1(t, tls.Client(r.dial(t), client)) }
	request()
	runtime.GC() // Stacks of earlier tests would be reused, and their end would look like less memory.
	before := stacks()

	for range connections {
		request()
	}

	if each := (stacks() - before) / connections; each > most {
		t.Errorf("%d bytes of stacks for each connection, want %d at most", each, most)
	}
}

// A connection that waits for its next request has no goroutine of net/http, and so no stack and no
// buffer of it. The test runs alone, as it looks at the goroutines of the process.
func TestParkedConnectionsLeaveNetHTTP(t *testing.T) {
	const connections = 100
	lot := newParkingLot(t, Options{})
	for range connections {
		conn, answered := lot.connect(t)
		send(t, conn, getRequest)
		answered("1")
	}

	text := make([]byte, 4<<20)
	for serving, parked, deadline := 1, 0, time.Now().Add(time.Minute); serving > 0 || parked < connections; {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are parked, and %d with net/http, want %d and none", parked, serving, connections)
		}

		<-time.After(parkAfter)
		all := string(text[:runtime.Stack(text, true)])
		serving = strings.Count(all, "\nnet/http.(*conn).serve(")
		parked = strings.Count(all, ".(*parking).awaitRequest(")
	}
}

// stacks returns the bytes of all stacks.
func stacks() int {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return int(memory.StackInuse)
}

// exchangeHTTP1 sends a request and reads its answer. The connection stays open.
func exchangeHTTP1(t *testing.T, conn *tls.Conn) {
	t.Helper()

	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}

	answer := must(http.ReadResponse(bufio.NewReader(conn), nil))(t)
	_ = answer.Body.Close() // It is empty.
}

// The server remembers no header of its answers (RFC 7541, section 6.3): the first block begins
// with an update of the table to 1 byte.
func TestAnswersNeedNoHeaderTable(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t)
	r := run(t, noContent, Options{TLS: &tls.Config{Certificates: []tls.Certificate{ca.issue(t)}}})
	conn := tls.Client(r.dial(t), &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1", NextProtos: []string{"h2"}})
	// Settings without a value, and GET https / as indexes of the static table.
	const settings, headers = "\x00\x00\x00\x04\x00\x00\x00\x00\x00", "\x00\x00\x03\x01\x05\x00\x00\x00\x01\x82\x87\x84"
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+settings+headers); err != nil {
		t.Fatal(err)
	}

	const sizeUpdate = 0x20 | 1
	if block := headerBlock(t, conn); block[0] != sizeUpdate {
		t.Errorf("the header block begins with %#x, want %#x", block[0], sizeUpdate)
	}
}

// headerBlock returns the payload of the first frame with headers (RFC 9113, section 6.2).
func headerBlock(t *testing.T, from io.Reader) []byte {
	t.Helper()
	const headersType = 1

	for {
		var head [9]byte
		if _, err := io.ReadFull(from, head[:]); err != nil {
			t.Fatal(err)
		}

		payload := make([]byte, binary.BigEndian.Uint32(append([]byte{0}, head[:3]...)))
		if _, err := io.ReadFull(from, payload); err != nil {
			t.Fatal(err)
		}
		if head[3] == headersType {
			return payload
		}
	}
}
