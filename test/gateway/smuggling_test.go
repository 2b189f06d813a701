package gateway_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// smuggled is text on the wire that two servers may parse in two ways. Inside or behind a valid
// request it has another one with the header of the victim. A server that parsed it as a request of
// the gateway would trigger the victim.
type smuggled struct{ name, text string }

// head begins a request of self, up to the middle of its header.
const head = "POST /v2/" + component + "/event HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

// beside returns a valid body of self.
func beside() string { return string(body(contract.V2, self)) }

func sized(body string) string { return fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body) }

func smuggledRequests(header, hidden string) []smuggled {
	const end = "0\r\n\r\n"
	forged := headerXFCC + ": " + header + "\r\n"
	return []smuggled{
		{"a length and chunks", head + "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n" + end + hidden},
		{"chunks that one reader does not see", head + "Transfer-Encoding: xchunked\r\n" + sized(end+hidden)},
		{"chunks behind a tab", head + "Transfer-Encoding:\tchunked\r\n" + sized(end+hidden)},
		{"chunks behind a blank before the colon", head + "Transfer-Encoding : chunked\r\n" + sized(end+hidden)},
		{"chunks, and another coding", head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n" + sized(end+hidden)},
		{"two lengths", head + "Content-Length: 0\r\n" + sized(hidden)},
		{"a length with a sign", head + "Content-Length: +0\r\n\r\n" + hidden},
		{"a chunk whose size overflows", head + "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n" + hidden},
		{"a chunk extension with a line feed", head + "Transfer-Encoding: chunked\r\n\r\n2;\nxx\r\n" + end + hidden},
		{"pipelined, in the body", head + sized(beside()+hidden)},
		{"an upgrade to HTTP/2", head + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n" +
			"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n" + sized(beside()) + hidden},
		{"a tunnel", "CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n" + hidden},
		{"an absolute address", strings.Replace(head, "/v2/", "https://localhost/v2/", 1) + forged + sized(beside())},
		{"the header with a blank before its colon", head + strings.Replace(forged, ":", " :", 1) + sized(beside())},
		{"the header as a folded line", head + "X-Other: a\r\n " + forged + sized(beside())},
		{"the header behind a bare line feed", head + "X-Other: a\n" + forged + sized(beside())},
		{"the header behind a bare carriage return", head + "X-Other: a\r" + forged + sized(beside())},
		{"the header behind a NUL", head + "X-Other: a\x00" + forged + sized(beside())},
		{"the header twice, in two spellings", head + forged + strings.ToUpper(headerXFCC) + ": " + header + "\r\n" + sized(beside())},
		{"the header in the path", strings.Replace(head, "/event", "/event?a=%0d%0a"+
			strings.ReplaceAll(strings.TrimSpace(forged), " ", "%20"), 1) + sized(beside())},
	}
}

// TestSmuggling writes bytes that no HTTP client would, through nginx. The answers differ from
// version to version of nginx. The victim is never triggered.
func TestSmuggling(t *testing.T) {
	n := newNetwork(t)
	body := beside()
	hidden := head + headerXFCC + ": " + headerOf(n.victim) + "\r\n" + sized(body)
	for _, s := range smuggledRequests(headerOf(n.victim), hidden) {
		t.Run(s.name, func(t *testing.T) {
			for _, w := range []way{byCertificate, lax} {
				before := n.triggered.len()
				answers := n.write(t, w, s.text)
				// A hidden request would come before this one, on connections that nginx keeps to
				// the listener.
				n.arrives(t, w, n.self, self)
				added := n.triggered.since(before)
				if slices.Contains(added, owner(victim).String()) {
					t.Errorf("%s: the victim was triggered: %q", w, added)
				}
				t.Logf("%s: %s", w, answers)
			}
		})
	}
	n.arrives(t, byCertificate, n.victim, victim)
}

// arrives sends a legitimate event beside requests that may not be over.
func (n *network) arrives(t *testing.T, w way, leaf *tls.Certificate, name string) {
	t.Helper()
	before := n.triggered.len()
	got := n.send(t, w, message{leaf: leaf, version: contract.V3, http2: true, claims: name})
	if added := n.triggered.since(before); got.status/100 != 2 || !slices.Contains(added, owner(name).String()) {
		t.Errorf("%s: an event of %s is answered %d (%v), and triggers %q", w, name, got.status, got.err, added)
	}
}

// write sends text over a connection of self and returns the statuses of all answers, up to the end
// of the connection.
func (n *network) write(t *testing.T, w way, text string) string {
	t.Helper()
	config := n.client(n.self)
	config.NextProtos = []string{"http/1.1"}
	dialer := &tls.Dialer{Config: config}
	conn := lab.Must(dialer.DialContext(t.Context(), "tcp", n.fronts[w]))
	defer conn.Close() // Nothing more is expected.
	// A server that waits for more text has parsed no request.
	const silence = 150 * time.Millisecond
	_, _ = io.WriteString(conn, text) // The server may have refused it in the middle.
	var statuses []string
	for answers := bufio.NewReader(conn); ; {
		_ = conn.SetReadDeadline(time.Now().Add(silence)) // A TLS connection has deadlines.
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			break
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		statuses = append(statuses, strconv.Itoa(response.StatusCode))
	}
	return strings.Join(statuses, ", ")
}
