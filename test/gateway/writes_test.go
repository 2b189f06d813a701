package gateway_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// direct calls the webhook as an API server does, but more often. Its TLS trusts one bundle and
// nothing else. A new bundle is in use at once and means new connections. Package test/controlplane/chain has
// the writes of real API servers.
type direct struct {
	t      *testing.T
	url    string
	bundle []byte
	client atomic.Pointer[http.Client]

	mu        sync.Mutex
	written   map[string]time.Time
	calls     int
	failed    int
	slowest   time.Duration
	perSecond float64 // the rate of writes
}

func newDirect(t *testing.T, webhook string) *direct {
	t.Helper()
	return &direct{
		t: t, url: "https://" + webhook + "/validate/" + component + "?timeout=10s",
		written: map[string]time.Time{}, perSecond: 500,
	}
}

func (s *direct) trust(bundle []byte) {
	s.t.Helper()
	s.bundle = bundle
	s.reconnect()
}

func (s *direct) reconnect() {
	s.t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(s.bundle) {
		s.t.Fatal("no certificate in the bundle")
	}
	next := &http.Client{Timeout: patience, Transport: &http.Transport{
		MaxIdleConnsPerHost: writers,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool},
	}}
	if old := s.client.Swap(next); old != nil {
		old.CloseIdleConnections()
	}
}

const (
	writers = 8
	// objects are written in turn, so that each comes again within seconds.
	objects = 500
)

// run writes objects in turn until ctx ends, and returns when the last call has ended.
func (s *direct) run(ctx context.Context) error {
	var (
		running sync.WaitGroup
		next    = make(chan string)
	)
	for range writers {
		running.Go(func() {
			for object := range next {
				s.write(object)
			}
		})
	}
	started := time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; <-tick.C {
		for ; n < int(time.Since(started).Seconds()*s.perSecond) && ctx.Err() == nil; n++ {
			next <- fmt.Sprint("object-", n%objects)
		}
	}
	close(next)
	running.Wait()
	s.client.Load().CloseIdleConnections()
	return nil
}

func (s *direct) write(object string) {
	started := time.Now()
	// The request is not bound to the end of the run, so that it is finished.
	err := lab.Ask(context.Background(), s.client.Load(), s.url, lab.Review(object, 1))
	took := time.Since(started)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	s.slowest = max(s.slowest, took)
	if s.written[object].Before(started) {
		s.written[object] = started
	}
	if err == nil {
		return
	}
	s.failed++
	if s.failed <= 3 { // The others are alike.
		s.t.Errorf("a write failed: %v", err)
	}
}

func (s *direct) late(c *controlPlane) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.late(s.written)
}

func (s *direct) check(t *testing.T, reviewed float64) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if reviewed < float64(s.calls) || s.calls == 0 {
		t.Errorf("of %d writes of %d objects, %v became events", s.calls, len(s.written), reviewed)
	}
}

func (s *direct) summary() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%d writes of %d objects, %d failed, slowest %v", s.calls, len(s.written), s.failed, s.slowest)
}
