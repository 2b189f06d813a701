package hardening

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// siegeShare is the share of the attackers. All of them take part only on request, because they
// share the machine with the listener.
var siegeShare = flag.Float64("siege", 0.1, "share of the attackers of a listener that come")

// siege is a listener that is attacked, in a process of its own.
type siege struct {
	t        *testing.T
	pki      *lab.PKI
	operator *operator
	state    string
	loud     tls.Certificate // of a runtime that attacks
	quiet    tls.Certificate
	hello    []byte
	frames   atomic.Int64 // that attackers could write
}

func newSiege(t *testing.T) *siege {
	t.Helper()
	needsProcesses(t)

	s := &siege{t: t, pki: lab.NewPKI(t), state: lab.Address(lab.FreePort(t))}
	s.operator = startOperator(t, s.pki, s.state)

	leaf, err := s.pki.CA.Client("loud", testpki.Options{})
	s.loud = leafOf(t, leaf, err)
	leaf, err = s.pki.CA.Client(runtimeName, testpki.Options{})
	s.quiet = leafOf(t, leaf, err)
	s.hello = helloOf(t, s.client(s.loud))

	lab.Eventually(t, patience, "the listener reports its state", func() bool { return s.report().Goroutines > 0 })
	return s
}

// client returns the configuration of a runtime that connects.
func (s *siege) client(pair tls.Certificate, protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: s.pki.CA.Pool(), ServerName: "localhost",
		Certificates: []tls.Certificate{pair}, NextProtos: protocols,
	}
}

// friend is a runtime from elsewhere with a connection of its own.
func (s *siege) friend() *http.Client {
	transport := &http.Transport{
		ForceAttemptHTTP2: true, TLSClientConfig: s.client(s.quiet),
		DialContext: func(ctx context.Context, _, to string) (net.Conn, error) { return dialFrom(ctx, friends, to) },
	}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// report returns the state of the listener, zero when the listener does not answer in time.
func (s *siege) report() (b besieged) {
	if text, err := lab.Get(s.t.Context(), "http://"+s.state); err == nil {
		_ = json.Unmarshal(text, &b) // Without an answer it stays zero.
	}
	return b
}

func (s *siege) holds() holding {
	return holding{usageOf(s.t, s.operator.Pid()), s.report().Goroutines}
}

// helloOf returns the first message of a client.
func helloOf(t *testing.T, config *tls.Config) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() { _ = tls.Client(ours, config).HandshakeContext(t.Context()) }() // No answer comes.

	record := make([]byte, 16<<10)

	n, err := theirs.Read(record)
	if err != nil {
		t.Fatal(err)
	}
	return record[:n]
}

// assault uses one connection until the listener closes it, or ctx ends. It is then made again.
type assault struct {
	name    string
	workers int
	pause   time.Duration // before it is made again
	do      func(ctx context.Context, s *siege) error
	// endures means that the server does not have to end the connection.
	endures bool
}

var strangers = []assault{
	{"connections that say nothing", 2000, time.Second, func(ctx context.Context, s *siege) error {
		conn, err := dialFrom(ctx, attackers, s.operator.addr)
		if err != nil {
			return err
		}
		defer conn.Close()

		_ = cutOff(ctx, conn) // However it ends.
		return io.EOF
	}, false},
	{"hellos that cost their sender nothing", 200, 20 * time.Millisecond, func(ctx context.Context, s *siege) error {
		conn, err := dialFrom(ctx, attackers, s.operator.addr)
		if err != nil {
			return err
		}
		defer conn.Close()

		stop := context.AfterFunc(ctx, func() { conn.Close() })
		defer stop()
		if _, err := conn.Write(s.hello); err != nil {
			return err
		}

		_, err = conn.Read(make([]byte, 1))
		return err
	}, true},
}

// TestListenerUnderFlood has strangers, and a runtime with a good certificate, attack a listener
// that terminates TLS itself. Another runtime delivers meanwhile, on an open connection and on new
// ones. Afterwards the listener has as much memory and as many files as before.
// TestWebhookUnderFlood has the attacks of slow clients.
func TestListenerUnderFlood(t *testing.T) {
	s := newSiege(t)
	patient := s.friend()
	if err := s.operator.send(t, patient, "before"); err != nil {
		t.Fatal(err)
	}

	before := s.holds()
	for _, attack := range append(strangers, frames...) {
		t.Run(attack.name, func(t *testing.T) { s.endure(t, attack, patient, before) })
	}

	if s.report().TooFast == 0 {
		t.Error("no event of the loud runtime was refused as too fast")
	}

	if err := s.operator.send(t, s.friend(), "after"); err != nil {
		t.Fatal(err)
	}

	lab.Eventually(t, patience, "the event is delivered",
		func() bool { return s.operator.printed(runtimeName, "after") })
}

// The limits of a listener beyond its connections: files of its own, and goroutines of requests.
// HTTP/2 has up to 256 requests on each connection of an attacker.
const (
	otherFiles     = 40
	moreGoroutines = 8 * 256   // on HTTP/2's eight connections
	moreKilobytes  = 256 << 10 // With the race detector: four times as much as without.
)

// endure has one attack, and deliveries during it.
func (s *siege) endure(t *testing.T, attack assault, patient *http.Client, before holding) {
	t.Helper()
	written := s.frames.Load()

	fought, stop := attack.start(t, s)
	defer stop()

	lab.Eventually(t, patience, "the attack is there",
		func() bool { return fought.attempts.Load() >= min(int64(attack.size()), maxBesieged) })

	took, failed, most := s.deliver(t, patient)
	if !attack.endures {
		lab.Eventually(t, patience, "the listener ends a connection of the attack", func() bool {
			most = most.with(s.holds())
			return fought.ended.Load() > 0
		})
	}

	slices.Sort(took)

	reported := s.report()
	t.Logf("%d connections tried, %d ended, %d frames; %d deliveries in p50 %v, max %v, %d failed; at most %d "+
		"files, %d goroutines, %d kB; %+v",
		fought.attempts.Load(), fought.ended.Load(), s.frames.Load()-written, len(took), took[len(took)/2],
		took[len(took)-1], failed, most.files, most.goroutines, most.kilobytes, reported)

	// Attackers, listener and runtime share the processors here, so a deadline may pass.
	if failed > 2 {
		t.Errorf("%d of %d deliveries failed during the attack", failed, failed+len(took))
	}

	if most.files > maxBesieged+otherFiles {
		t.Errorf("%d open files, want at most %d", most.files, maxBesieged+otherFiles)
	}

	if limit := 3*(maxBesieged+otherFiles) + moreGoroutines; most.goroutines > limit {
		t.Errorf("%d goroutines, want at most %d", most.goroutines, limit)
	}

	if limit := before.kilobytes + moreKilobytes; most.kilobytes > limit {
		t.Errorf("%d kB resident, want at most %d", most.kilobytes, limit)
	}

	stop()
	lab.Eventually(t, time.Minute, "the listener has as much memory and as many files as before", func() bool {
		now := s.holds()
		return now.goroutines > 0 && now.files <= before.files+10 && now.goroutines <= before.goroutines+20
	})
}

// deliver has a runtime send events for two seconds, on its connection and on new ones.
func (s *siege) deliver(t *testing.T, patient *http.Client) (took []time.Duration, failed int, most holding) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for i := range 10 {
		<-tick.C

		fresh := s.friend()
		for _, client := range []*http.Client{patient, fresh} {
			began := time.Now()

			name := fmt.Sprintf("during-%d", i)
			if err := s.operator.send(t, client, name); err != nil {
				t.Logf("an event was not taken: %v", err)

				failed++
				continue
			}

			took = append(took, time.Since(began))
		}

		fresh.CloseIdleConnections()

		most = most.with(s.holds())
	}

	if len(took) == 0 {
		t.Fatal("no event was taken during the attack")
	}
	return took, failed, most
}

// fight has the results of an attack so far.
type fight struct {
	attempts, ended atomic.Int64
}

func (a assault) size() int { return max(int(float64(a.workers)**siegeShare), 1) }

// start attacks until it is stopped, with a bound on the attempts.
func (a assault) start(t *testing.T, s *siege) (*fight, func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)

	var (
		all    sync.WaitGroup
		fought fight
	)
	for range a.size() {
		all.Go(func() {
			for ctx.Err() == nil && fought.attempts.Add(1) < 10_000 {
				// It fails when the listener defends itself.
				if err := a.do(ctx, s); err != nil && ctx.Err() == nil {
					fought.ended.Add(1)
				}

				select {
				case <-time.After(a.pause): // It shares the processor with the listener.
				case <-ctx.Done():
				}
			}
		})
	}
	return &fought, func() {
		cancel()
		all.Wait()
	}
}

// TestListenerTellsNothing reads the answers to strangers, and to a runtime that makes mistakes.
func TestListenerTellsNothing(t *testing.T) {
	s := newSiege(t)

	other, err := testpki.NewCA("elsewhere", testpki.Options{})
	if err != nil {
		t.Fatal(err)
	}

	leaf, err := other.Client(runtimeName, testpki.Options{})
	foreign := leafOf(t, leaf, err)
	old := s.client(s.quiet)
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12

	anyway := s.client(tls.Certificate{})
	anyway.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &foreign, nil }
	for name, config := range map[string]*tls.Config{
		"no certificate":      s.client(tls.Certificate{}),
		"foreign certificate": anyway, "TLS 1.2": old,
	} {
		conn, err := tlsFrom(t.Context(), attackers, s.operator.addr, config)
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
			conn.Close()
		}

		if err == nil || !strings.Contains(err.Error(), "remote error: tls: ") || inside.MatchString(err.Error()) {
			t.Errorf("%s: %v, want an alert and nothing else", name, err)
		}
	}

	for name, text := range map[string]string{
		"no such path":   "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
		"no such method": "BREW /v2/widgets/event HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
		"no such type": "POST /v2/widgets/event HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: " +
			"close\r\n\r\n{}",
		"broken JSON": "POST /v2/widgets/event HTTP/1.1\r\nHost: a\r\nContent-Type: " +
			"application/json\r\nContent-Length: 1\r\nConnection: close\r\n\r\n{",
		"no HTTP": "\x00\x01\x02\r\n\r\n",
	} {
		conn, err := tlsFrom(t.Context(), attackers, s.operator.addr, s.client(s.quiet))
		if err != nil {
			t.Fatal(err)
		}

		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}

		answer, _ := io.ReadAll(conn)
		conn.Close()
		if !strings.HasPrefix(string(answer), "HTTP/1.1 4") || inside.Match(answer) {
			t.Errorf("%s is answered %q, want a refusal without internal details", name, answer)
		}
	}
}
