package hardening

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// attack uses one connection of a flood until the connection is cut off, or ctx ends. It is then
// made again.
type attack struct {
	name    string
	workers int
	do      func(ctx context.Context, s *scene) error
}

// drip writes one byte a second until the other end closes the connection.
func drip(ctx context.Context, conn net.Conn, text string) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for i := range len(text) {
		if _, err := conn.Write([]byte{text[i]}); err != nil {
			return err
		}

		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// cutOff waits for the other end to close.
func cutOff(ctx context.Context, conn net.Conn) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	_, err := io.Copy(io.Discard, conn)
	return err
}

func withTLS(do func(ctx context.Context, conn net.Conn) error) func(context.Context, *scene) error {
	return func(ctx context.Context, s *scene) error {
		conn, err := tlsFrom(ctx, attackers, s.webhook(), s.trusting())
		if err != nil {
			return err
		}
		defer conn.Close()
		return do(ctx, conn)
	}
}

func post(target, review string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: agent\r\nContent-Type: application/json\r\nContent-Length: "+
		"%d\r\n\r\n%s",
		target, len(review), review)
}

// beginningOfLargeReview is made once. Hundreds of attackers that each make a megabyte would take
// the processors from the client beside them.
var beginningOfLargeReview = sync.OnceValue(func() string {
	return post("/validate/widgets",
		reviewOf("dripped", 1<<20))[:1000]
})

var floods = []attack{
	{"connections that say nothing", 2000, func(ctx context.Context, s *scene) error {
		conn, err := dialFrom(ctx, attackers, s.webhook())
		if err != nil {
			return err
		}
		defer conn.Close()
		return cutOff(ctx, conn)
	}},
	{"handshakes that never end", 1000, func(ctx context.Context, s *scene) error {
		conn, err := dialFrom(ctx, attackers, s.webhook())
		if err != nil {
			return err
		}
		defer conn.Close()
		return drip(ctx, conn, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"+strings.Repeat("a", 500))
	}},
	{"a byte of a header every second", 400, withTLS(func(ctx context.Context, conn net.Conn) error {
		return drip(ctx, conn, "POST /validate/widgets HTTP/1.1\r\nHost: agent\r\nX: "+strings.Repeat("a", 500))
	})},
	{"a byte of a large body every second", 400, withTLS(func(ctx context.Context, conn net.Conn) error {
		whole := beginningOfLargeReview()
		if _, err := io.WriteString(conn, whole[:500]); err != nil {
			return err
		}
		return drip(ctx, conn, whole[500:])
	})},
	{"idle connections after a request", 400, withTLS(func(ctx context.Context, conn net.Conn) error {
		if _, err := io.WriteString(conn, post("/validate/../x", "{}")); err != nil {
			return err
		}
		return cutOff(ctx, conn)
	})},
}

// TestWebhookUnderFlood has a pod attack the webhook, which does not demand a certificate. Reviews
// from elsewhere are answered meanwhile, on new connections and on old ones. Afterwards the agent
// has as much memory and as many files as before.
func TestWebhookUnderFlood(t *testing.T) {
	// the metrics port; files, the control plane, and connections that are about to close
	const maxConnections, others = 256, 64 + 40
	s := newScene(t, map[string]string{"LOG_LEVEL": "info", "WEBHOOK_MAX_CONNECTIONS": strconv.Itoa(maxConnections)})
	patient := s.apiServer()
	if _, err := s.review(patient, "before"); err != nil {
		t.Fatal(err)
	}

	before := s.holds(t)
	for _, flood := range floods {
		t.Run(flood.name, func(t *testing.T) {
			attempts, stop := flood.start(t, s)
			defer stop()

			lab.Eventually(t, patience, "the flood is there",
				func() bool { return attempts.Load() >= int64(min(flood.workers, maxConnections)) })

			var (
				took []time.Duration
				most holding

				failed int
			)
			for i := range 20 {
				fresh := s.apiServer()
				for _, client := range []*http.Client{patient, fresh} {
					d, err := s.review(client, fmt.Sprintf("during-%d", i))
					if err != nil {
						// Attackers, agent and API server share the processors here, so a deadline
						// may pass.
						t.Logf("a review was not answered: %v", err)

						failed++
						continue
					}

					took = append(took, d)
				}

				fresh.CloseIdleConnections()

				most = most.with(s.holds(t))
			}

			if failed > 4 {
				t.Fatalf("%d of 40 reviews were not answered during the attack", failed)
			}

			slices.Sort(took)
			t.Logf("%d connections tried; %d reviews in p50 %v, max %v; at most %d files, %d goroutines, %d kB "+
				"resident",
				attempts.Load(), len(took), took[len(took)/2], took[len(took)-1], most.files, most.goroutines,
				most.kilobytes)
			if most.files > maxConnections+others {
				t.Errorf("%d open files, want at most %d", most.files, maxConnections+others)
			}

			if most.goroutines > 3*(maxConnections+others) {
				t.Errorf("%d goroutines, want at most %d", most.goroutines, 3*(maxConnections+others))
			}

			// A connection with TLS takes some 40 kB, and each of those with a large body announces
			// one of 1 MiB.
			if limit := before.kilobytes + 128<<10; most.kilobytes > limit {
				t.Errorf("%d kB resident, want at most %d", most.kilobytes, limit)
			}

			stop()
			lab.Eventually(t, time.Minute, "the agent has as much memory and as many files as before", func() bool {
				now := s.holds(t)
				return now.goroutines > 0 && now.files <= before.files+10 && now.goroutines <= before.goroutines+20
			})
		})
	}

	if n := s.agent.Metric("runtime_watcher_agent_connections_dropped_total", `server="webhook"`); n == 0 {
		t.Error("no dropped connection is counted")
	}

	if _, err := s.review(s.apiServer(), "after"); err != nil {
		t.Fatal(err)
	}

	s.awaitEvent("after")
}

// start floods the webhook until it is stopped, with a bound on the attempts.
func (a attack) start(t *testing.T, s *scene) (attempts *atomic.Int64, stop func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	attempts = &atomic.Int64{}

	var all sync.WaitGroup
	for range a.workers {
		all.Go(func() {
			for ctx.Err() == nil && attempts.Add(1) < 20_000 {
				_ = a.do(ctx, s) // It fails when the agent defends itself.
				select {
				case <-time.After(2 * time.Second): // It shares the processor with the agent.
				case <-ctx.Done():
				}
			}
		})
	}
	return attempts, func() {
		cancel()
		all.Wait()
	}
}

// holding has the resources of the agent at one moment.
type holding struct {
	usage

	goroutines int
}

// holds leaves out the goroutines when the metrics port does not answer in time.
func (s *scene) holds(t *testing.T) holding {
	t.Helper()
	h := holding{usage: usageOf(t, s.agent.Pid())}
	if text, err := lab.Get(t.Context(), "http://"+s.metrics()+"/metrics"); err == nil {
		h.goroutines = int(lab.Sum(text, "go_goroutines"))
	}
	return h
}

func (h holding) with(o holding) holding {
	return holding{usage{max(h.files, o.files), max(h.kilobytes, o.kilobytes)}, max(h.goroutines, o.goroutines)}
}

// TestMetricsPortUnderFlood opens more connections to the metrics port than it takes. A
// scraper from elsewhere is served.
func TestMetricsPortUnderFlood(t *testing.T) {
	s := newScene(t, nil)

	var conns []net.Conn
	defer func() {
		for _, conn := range conns {
			conn.Close()
		}
	}()
	for range 500 {
		conn, err := dialFrom(t.Context(), attackers, s.metrics())
		if err != nil {
			t.Fatal(err)
		}

		conns = append(conns, conn)
		_, _ = io.WriteString(conn, "GET /metrics HTTP/1.1\r\nX: ") // Some are closed by now.
	}

	lab.Eventually(t, patience, "more than 400 of 500 connections were dropped", func() bool {
		text, err := lab.Get(t.Context(), "http://"+s.metrics()+"/metrics")
		return err == nil && lab.Sum(text, "runtime_watcher_agent_connections_dropped_total", `server="metrics"`) > 400
	})
	if now := usageOf(t, s.agent.Pid()); now.files > 64+40 {
		t.Errorf("%d open files", now.files)
	}
}

// inside matches internal details: source positions, file names and keys.
var inside = regexp.MustCompile(`goroutine|\.go:\d|runtime error|/tmp/|tls\.key|BEGIN |panic|github\.com`)

// TestHandshakesTellNothing reads the alerts that a webhook which demands client certificates sends
// to strangers.
func TestHandshakesTellNothing(t *testing.T) {
	callers, err := testpki.NewCA("api-server-clients", testpki.Options{})
	if err != nil {
		t.Fatal(err)
	}

	file := filepath.Join(t.TempDir(), "callers.crt")
	if err := os.WriteFile(file, callers.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}

	s := newScene(t, map[string]string{"WEBHOOK_CLIENT_CA": file})
	for name, config := range map[string]*tls.Config{
		"no certificate": s.trusting(),
		"TLS 1.2": {
			MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, RootCAs: s.pki.CA.Pool(),
			ServerName: "localhost",
		},
		"HTTP/2": {
			MinVersion: tls.VersionTLS13, RootCAs: s.pki.CA.Pool(), ServerName: "localhost",
			NextProtos: []string{"h2"},
		},
	} {
		conn, err := tlsFrom(t.Context(), attackers, s.webhook(), config)
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
			conn.Close()
		}

		if err == nil || !strings.Contains(err.Error(), "remote error: tls: ") || inside.MatchString(err.Error()) {
			t.Errorf("%s: %v, want an alert and nothing else", name, err)
		}
	}

	// Plain HTTP gets an answer that names the mistake, and nothing else.
	conn, err := dialFrom(t.Context(), attackers, s.webhook())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}

	answer, _ := io.ReadAll(conn)
	const want = "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
	if string(answer) != want {
		t.Errorf("plain HTTP is answered %q, want %q", answer, want)
	}
}
