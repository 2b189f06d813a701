package hardening

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// attack uses one connection until it is closed, or ctx ends. It is then made again.
type attack struct {
	name    string
	workers int
	pause   time.Duration // before it is made again
	do      func(ctx context.Context) error
	// endures means that the program does not have to end the connection.
	endures bool
}

// limits are those of a listener that is attacked. Its memory may grow by the kilobytes.
type limits struct {
	holding

	connections int
}

// withstands attacks the listener, and has friends use it meanwhile. Afterwards it has as many
// files and goroutines as before.
func (s *siege) withstands(t *testing.T, a attack, patient *http.Client, before holding, most limits) {
	t.Helper()
	fought, stop := a.start(t)
	defer stop()
	lab.Eventually(t, lab.Patience, "the attack is there",
		func() bool { return fought.attempts.Load() >= int64(min(a.workers, most.connections)) })
	took, failed, held := s.use(t, patient)
	if !a.endures {
		lab.Eventually(t, lab.Patience, "the listener ends a connection of the attack", func() bool {
			held = held.with(s.holds())
			return fought.ended.Load() > 0
		})
	}
	slices.Sort(took)
	t.Logf("%d connections tried, %d ended; %d requests in p50 %v, max %v, %d failed; at most %d files, %d goroutines, "+
		"%d kB", fought.attempts.Load(), fought.ended.Load(), len(took), took[len(took)/2], took[len(took)-1], failed,
		held.files, held.goroutines, held.kilobytes)
	// Attackers, listener and friends share the processors here, so a deadline may pass.
	if failed > 2 {
		t.Errorf("%d of %d requests failed during the attack", failed, failed+len(took))
	}
	if held.files > most.files || held.goroutines > most.goroutines || held.kilobytes > before.kilobytes+most.kilobytes {
		t.Errorf("it held %+v, want at most %+v with %d kB more", held, most.holding, before.kilobytes)
	}
	stop()
	lab.Eventually(t, lab.Patience, "the listener has as many files and goroutines as before", func() bool {
		now := s.holds()
		return now.goroutines > 0 && now.files <= before.files+10 && now.goroutines <= before.goroutines+20
	})
}

// use makes requests for a second, on the connection of a patient client and on new ones.
func (s *siege) use(t *testing.T, patient *http.Client) (took []time.Duration, failed int, most holding) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := range 10 {
		<-tick.C
		fresh := s.friend()
		for _, client := range []*http.Client{patient, fresh} {
			began := time.Now()
			if err := s.send(client, fmt.Sprintf("during-%d", i)); err != nil {
				t.Logf("a request failed: %v", err)
				failed++
				continue
			}
			took = append(took, time.Since(began))
		}
		fresh.CloseIdleConnections()
		most = most.with(s.holds())
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

// holding has the resources of a program at one moment.
type holding struct{ files, kilobytes, goroutines int }

func (h holding) with(o holding) holding {
	return holding{max(h.files, o.files), max(h.kilobytes, o.kilobytes), max(h.goroutines, o.goroutines)}
}

func openFiles(pid int) int { return len(lab.Must(os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)))) }

// TestPortsUnderFlood opens more connections to each port of an agent than it takes. A client from
// elsewhere is served.
func TestPortsUnderFlood(t *testing.T) {
	s := newScene(t, nil)
	caller := &http.Client{Timeout: lab.Patience, Transport: &http.Transport{TLSClientConfig: s.trusting(), DialContext: dialAsFriend}}
	defer caller.CloseIdleConnections()
	const many, others = 500, 40 // Others are the other port, files, and connections that are about to close.
	for _, port := range []struct {
		name, address, begin string
		most                 int // connections
	}{
		{"metrics", s.metrics(), "GET /metrics HTTP/1.1\r\nX: ", 64},
		{"webhook", s.webhook(), "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 192},
	} {
		t.Run(port.name, func(t *testing.T) {
			for range many {
				conn := lab.Must(dialFrom(t.Context(), attackers, port.address))
				t.Cleanup(func() { conn.Close() })
				_, _ = io.WriteString(conn, port.begin) // Some are closed by now.
			}
			lab.NoError(t, lab.Ask(t.Context(), caller, "https://"+s.webhook()+"/validate/"+manager, lab.Review(port.name)))
			// On a busy machine, some time out before.
			least, label := float64(many-port.most)/2, fmt.Sprintf("server=%q", port.name)
			lab.Eventually(t, lab.Patience, "connections are dropped, and counted", func() bool {
				return s.agent.Metric("runtime_watcher_agent_connections_dropped_total", label) >= least
			})
			if n := openFiles(s.agent.Pid()); n > port.most+64+others {
				t.Errorf("%d open files", n)
			}
		})
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
	callers := lab.Must(testpki.NewCA("api-server-clients", testpki.Options{}))
	file := filepath.Join(t.TempDir(), "callers.crt")
	lab.NoError(t, os.WriteFile(file, callers.PEM, 0o600))
	s := newScene(t, map[string]string{"WEBHOOK_CLIENT_CA": file})
	old, http2 := s.trusting(), s.trusting()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	http2.NextProtos = []string{"h2"}
	tellNothing(t, s.webhook(), map[string]*tls.Config{"no certificate": s.trusting(), "TLS 1.2": old, "HTTP/2": http2})
	// Plain HTTP gets an answer that names the mistake, and nothing else.
	conn := lab.Must(dialFrom(t.Context(), attackers, s.webhook()))
	defer conn.Close()
	lab.Must(io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
	answer, _ := io.ReadAll(conn)
	lab.Same(t, "answer to plain HTTP", "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n", string(answer))
}
