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

// target is a program that is attacked, while others use it.
type target interface {
	// friend returns a client from elsewhere, with a connection of its own.
	friend() *http.Client
	// send makes one legitimate request.
	send(client *http.Client, name string) error
	holds(t *testing.T) holding
}

// attack uses one connection until it is closed, or ctx ends. It is then made again.
type attack struct {
	name    string
	workers int
	pause   time.Duration // before it is made again
	do      func(ctx context.Context) error
	// endures means that the program does not have to end the connection.
	endures bool
}

// limits are those of a program that is attacked.
type limits struct{ connections, files, goroutines, moreKilobytes int }

// against attacks a program, and has friends use it meanwhile. Afterwards the program has as much
// memory and as many files as before.
func (a attack) against(t *testing.T, it target, patient *http.Client, before holding, most limits) {
	t.Helper()
	fought, stop := a.start(t)
	defer stop()
	lab.Eventually(t, patience, "the attack is there",
		func() bool { return fought.attempts.Load() >= int64(min(a.workers, most.connections)) })
	took, failed, held := use(t, it, patient)
	if !a.endures {
		lab.Eventually(t, patience, "the program ends a connection of the attack", func() bool {
			held = held.with(it.holds(t))
			return fought.ended.Load() > 0
		})
	}
	slices.Sort(took)
	t.Logf("%d connections tried, %d ended; %d requests in p50 %v, max %v, %d failed; at most %d files, %d goroutines, "+
		"%d kB", fought.attempts.Load(), fought.ended.Load(), len(took), took[len(took)/2], took[len(took)-1], failed,
		held.files, held.goroutines, held.kilobytes)
	// Attackers, program and friends share the processors here, so a deadline may pass.
	if failed > 2 {
		t.Errorf("%d of %d requests failed during the attack", failed, failed+len(took))
	}
	if held.files > most.files {
		t.Errorf("%d open files, want at most %d", held.files, most.files)
	}
	if held.goroutines > most.goroutines {
		t.Errorf("%d goroutines, want at most %d", held.goroutines, most.goroutines)
	}
	if limit := before.kilobytes + most.moreKilobytes; held.kilobytes > limit {
		t.Errorf("%d kB resident, want at most %d", held.kilobytes, limit)
	}
	stop()
	lab.Eventually(t, patience, "the program has as much memory and as many files as before", func() bool {
		now := it.holds(t)
		return now.goroutines > 0 && now.files <= before.files+10 && now.goroutines <= before.goroutines+20
	})
}

// use makes requests for two seconds, on the connection of a patient client and on new ones.
func use(t *testing.T, it target, patient *http.Client) (took []time.Duration, failed int, most holding) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for i := range 10 {
		<-tick.C
		fresh := it.friend()
		for _, client := range []*http.Client{patient, fresh} {
			began := time.Now()
			if err := it.send(client, fmt.Sprintf("during-%d", i)); err != nil {
				t.Logf("a request failed: %v", err)
				failed++
				continue
			}
			took = append(took, time.Since(began))
		}
		fresh.CloseIdleConnections()
		most = most.with(it.holds(t))
	}
	if len(took) == 0 {
		t.Fatal("no request was answered during the attack")
	}
	return took, failed, most
}

// fight has the results of an attack so far.
type fight struct{ attempts, ended atomic.Int64 }

// start attacks until it is stopped, with a bound on the attempts.
func (a attack) start(t *testing.T) (fought *fight, stop func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	fought = &fight{}
	var all sync.WaitGroup
	for range a.workers {
		all.Go(func() {
			for ctx.Err() == nil && fought.attempts.Add(1) < 10_000 {
				// It fails when the program defends itself.
				if err := a.do(ctx); err != nil && ctx.Err() == nil {
					fought.ended.Add(1)
				}
				select {
				case <-time.After(a.pause): // It shares the processor with the program.
				case <-ctx.Done():
				}
			}
		})
	}
	return fought, func() {
		cancel()
		all.Wait()
	}
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

// overTLS attacks the webhook over an encrypted connection.
func (s *scene) overTLS(do func(ctx context.Context, conn net.Conn) error) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := tlsFrom(ctx, attackers, s.webhook(), s.trusting())
		if err != nil {
			return err
		}
		defer conn.Close()
		return do(ctx, conn)
	}
}

// plain attacks an address over a connection without TLS.
func plain(address string, do func(ctx context.Context, conn net.Conn) error) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := dialFrom(ctx, attackers, address)
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
		lab.Review("dripped", 1<<20))[:1000]
})

// floods are attacks of slow clients on the webhook.
func (s *scene) floods() []attack {
	const pause = 2 * time.Second
	return []attack{
		{"handshakes that never end", 1000, pause, plain(s.webhook(), func(ctx context.Context, conn net.Conn) error {
			return drip(ctx, conn, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"+strings.Repeat("a", 500))
		}), true},
		{"a byte of a large body every second", 400, pause, s.overTLS(func(ctx context.Context, conn net.Conn) error {
			whole := beginningOfLargeReview()
			if _, err := io.WriteString(conn, whole[:500]); err != nil {
				return err
			}
			return drip(ctx, conn, whole[500:])
		}), true},
		{"idle connections after a request", 400, pause, s.overTLS(func(ctx context.Context, conn net.Conn) error {
			if _, err := io.WriteString(conn, post("/validate/../x", "{}")); err != nil {
				return err
			}
			return cutOff(ctx, conn)
		}), true},
	}
}

// TestWebhookUnderFlood has a pod attack the webhook, which does not demand a certificate. Reviews
// from elsewhere are answered meanwhile, on new connections and on old ones.
func TestWebhookUnderFlood(t *testing.T) {
	// The others are the metrics port, files, the control plane, and connections that are about to
	// close. A connection with TLS takes some 40 kB, and some announce a body of 1 MiB.
	const maxConnections, others = 256, 64 + 40
	most := limits{maxConnections, maxConnections + others, 3 * (maxConnections + others), 128 << 10}
	s := newScene(t, map[string]string{"LOG_LEVEL": "info", "WEBHOOK_MAX_CONNECTIONS": strconv.Itoa(maxConnections)})
	patient := s.friend()
	if err := s.send(patient, "before"); err != nil {
		t.Fatal(err)
	}
	before := s.holds(t)
	for _, flood := range s.floods() {
		t.Run(flood.name, func(t *testing.T) { flood.against(t, s, patient, before, most) })
	}
	if n := s.agent.Metric("runtime_watcher_agent_connections_dropped_total", `server="webhook"`); n == 0 {
		t.Error("no dropped connection is counted")
	}
	if err := s.send(s.friend(), "after"); err != nil {
		t.Fatal(err)
	}
	s.awaitEvent("after")
}

// holding has the resources of a program at one moment.
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

// tellNothing wants each handshake to fail with an alert.
func tellNothing(t *testing.T, address string, handshakes map[string]*tls.Config) {
	t.Helper()
	for name, config := range handshakes {
		conn, err := tlsFrom(t.Context(), attackers, address, config)
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
			conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "remote error: tls: ") || inside.MatchString(err.Error()) {
			t.Errorf("%s: %v, want an alert and nothing else", name, err)
		}
	}
}

// TestHandshakesTellNothing reads the alerts that a webhook which demands client certificates sends
// to strangers.
func TestHandshakesTellNothing(t *testing.T) {
	callers, err := testpki.NewCA("api-server-clients", testpki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "callers.crt")
	if err := os.WriteFile(file, callers.PEM, 0o600); err != nil {
		t.Fatal(err)
	}
	s := newScene(t, map[string]string{"WEBHOOK_CLIENT_CA": file})
	tellNothing(t, s.webhook(), map[string]*tls.Config{
		"no certificate": s.trusting(),
		"TLS 1.2": {
			MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, RootCAs: s.pki.CA.Pool(),
			ServerName: "localhost",
		},
		"HTTP/2": {
			MinVersion: tls.VersionTLS13, RootCAs: s.pki.CA.Pool(), ServerName: "localhost",
			NextProtos: []string{"h2"},
		},
	})
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
