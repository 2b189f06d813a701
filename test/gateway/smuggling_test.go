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

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

// smuggled is text on the wire that two readers might understand in two ways. Inside or behind a request that is fine, there is another with the
// header of the victim: whoever has it read as a request of the gateway is the victim.
type smuggled struct {
	name string
	// text is made of a head that may not be complete, and the request that is hidden.
	text func(hidden string) string
}

// head begins a request of self. It ends within the header.
const head = "POST /v2/" + component + "/event HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

// beside is a body of self, which is fine.
func beside() string {
	return string(must(contract.V2.Encode([]core.WatchEvent{eventOf(contract.V2, self)})))
}

func sized(body string) string { return fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body) }

func smuggledRequests(header string) []smuggled {
	const end = "0\r\n\r\n"

	forged := listener.HeaderXFCC + ": " + header + "\r\n"

	return []smuggled{
		{"a length and chunks", func(hidden string) string {
			return head + "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n" + end + hidden
		}},
		{"chunks that one reader does not see", func(hidden string) string {
			return head + "Transfer-Encoding: xchunked\r\n" + sized(end+hidden)
		}},
		{"chunks behind a tab", func(hidden string) string {
			return head + "Transfer-Encoding:\tchunked\r\n" + sized(end+hidden)
		}},
		{"chunks behind a blank before the colon", func(hidden string) string {
			return head + "Transfer-Encoding : chunked\r\n" + sized(end+hidden)
		}},
		{"chunks, and another coding", func(hidden string) string {
			return head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n" + sized(end+hidden)
		}},
		{"two lengths", func(hidden string) string {
			return head + "Content-Length: 0\r\n" + sized(hidden)
		}},
		{"a length with a sign", func(hidden string) string {
			return head + "Content-Length: +0\r\n\r\n" + hidden
		}},
		{"a chunk whose size overflows", func(hidden string) string {
			return head + "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n" + hidden
		}},
		{"a chunk extension with a line feed", func(hidden string) string {
			return head + "Transfer-Encoding: chunked\r\n\r\n2;\nxx\r\n" + end + hidden
		}},
		{"pipelined, in the body", func(hidden string) string { return head + sized(beside()+hidden) }},
		{"an upgrade to HTTP/2", func(hidden string) string {
			return head + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n" + sized(beside()) + hidden
		}},
		{"a tunnel", func(hidden string) string { return "CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n" + hidden }},
		{"an absolute address", func(string) string {
			return strings.Replace(head, "/v2/", "https://localhost/v2/", 1) + forged + sized(beside())
		}},
		{"the header with a blank before its colon", func(string) string {
			return head + strings.Replace(forged, ":", " :", 1) + sized(beside())
		}},
		{"the header as a folded line", func(string) string {
			return head + "X-Other: a\r\n " + forged + sized(beside())
		}},
		{"the header behind a bare line feed", func(string) string {
			return head + "X-Other: a\n" + forged + sized(beside())
		}},
		{"the header behind a bare carriage return", func(string) string {
			return head + "X-Other: a\r" + forged + sized(beside())
		}},
		{"the header behind a NUL", func(string) string {
			return head + "X-Other: a\x00" + forged + sized(beside())
		}},
		{"the header twice, in two spellings", func(string) string {
			return head + forged + strings.ToUpper(listener.HeaderXFCC) + ": " + header + "\r\n" + sized(beside())
		}},
		{"the header in the path", func(string) string {
			return strings.Replace(head, "/event", "/event?a=%0d%0a"+strings.ReplaceAll(strings.TrimSpace(forged), " ", "%20"), 1) + sized(beside())
		}},
	}
}

// TestSmuggling writes what no HTTP client would, through nginx and natively. What becomes of it differs from server to server; that the
// victim is never triggered does not.
func TestSmuggling(t *testing.T) {
	n := newNetwork(t)
	n.at.register(t, rig.Namespace, self, new(selfDomain))
	n.at.register(t, rig.Namespace, victim, new(victimDomain))

	a := &attacks{network: n, clients: map[regular]*http.Client{}, table: &table{}}
	a.self, a.victim = a.runtime(self, selfDomain), a.runtime(victim, victimDomain)
	a.table.section("smuggling")

	body := beside()
	hidden := head + listener.HeaderXFCC + ": " + headerOf(a.victim) + "\r\n" + sized(body)

	for _, s := range smuggledRequests(headerOf(a.victim)) {
		t.Run(s.name, func(t *testing.T) {
			have := map[way][]outcome{}

			for _, w := range []way{handshake, native, byCertificate, byAddress, lax} {
				before := a.at.queue.len()
				have[w] = []outcome{a.write(t, w, s.text(hidden))}

				// Whatever was hidden would come before this, on connections that nginx keeps to the listener.
				a.passes(t, w, a.self, self)

				added := a.at.queue.since(before)
				if slices.Contains(added, owner(victim).String()) {
					t.Errorf("%s: the victim was triggered: %q", w, added)
				}
			}

			a.table.add(s.name, have)
		})
	}

	for _, w := range []way{handshake, native, byCertificate, byAddress, lax} {
		a.passes(t, w, a.victim, victim)
	}

	a.closeIdle()
	t.Logf("\n%s", a.table)
}

// write sends text over a connection of self and returns the statuses of all answers, up to the end of the connection.
func (a *attacks) write(t *testing.T, w way, text string) outcome {
	t.Helper()

	dialer := &tls.Dialer{Config: &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: a.ca.servers.Pool(), ServerName: "localhost", Certificates: []tls.Certificate{*a.self},
		NextProtos: []string{"http/1.1"},
	}}

	conn := must(dialer.DialContext(t.Context(), "tcp", a.fronts[w]))
	defer conn.Close() // Nothing more is expected.

	// One that waits for more text has understood none of it as a request.
	const silence = 150 * time.Millisecond

	_, _ = io.WriteString(conn, text) // It may have been refused in the middle.

	var statuses []string

	for answers := bufio.NewReader(conn); ; {
		_ = conn.SetReadDeadline(time.Now().Add(silence)) // A connection of TLS has deadlines.

		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			break
		}

		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()

		statuses = append(statuses, strconv.Itoa(response.StatusCode))
	}

	if len(statuses) == 0 {
		return "no answer"
	}

	return outcome(strings.Join(statuses, ", "))
}
