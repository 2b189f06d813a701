package gateway_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// apiServer writes as an API server does: it calls the webhook for each write, over TLS that trusts the bundle in the webhook's configuration
// and nothing else. A new bundle means new connections.
type apiServer struct {
	t      *testing.T
	url    string
	client atomic.Pointer[http.Client]

	mu      sync.Mutex
	written map[string]time.Time
	calls   int
	failed  int
	slowest time.Duration
}

func newAPIServer(t *testing.T, webhook string) *apiServer {
	t.Helper()

	return &apiServer{t: t, url: "https://" + webhook + "/validate/" + component + "?timeout=10s", written: map[string]time.Time{}}
}

// trust replaces the bundle.
func (s *apiServer) trust(bundle []byte) {
	s.t.Helper()

	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
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
	objects = 1000
)

// run writes at a rate until ctx ends.
func (s *apiServer) run(ctx context.Context, perSecond int) {
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
		for ; n < int(time.Since(started).Seconds()*float64(perSecond)); n++ {
			next <- fmt.Sprintf("object-%d", n%objects)
		}
	}

	close(next)
	running.Wait()
	s.client.Load().CloseIdleConnections()
}

func (s *apiServer) write(object string) {
	started := time.Now()
	err := s.review(object)
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

// review asks the webhook, and fails unless it allows the write.
func (s *apiServer) review(object string) error {
	const review = `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"uid-1",` +
		`"kind":{"group":"","version":"v1","kind":"ConfigMap"},"resource":{"group":"","version":"v1","resource":"configmaps"},` +
		`"name":%[1]q,"namespace":"default","operation":"CREATE","userInfo":{},"dryRun":false,"oldObject":null,` +
		`"object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%[1]q,"namespace":"default"},"data":{"a":"b"}}}}`

	// Not bound to the end of the run: what is begun is finished.
	request, err := http.NewRequestWithContext(context.Background(), http.MethodPost, s.url, strings.NewReader(fmt.Sprintf(review, object)))
	if err != nil {
		return err
	}

	request.Header.Set("Content-Type", "application/json")

	answer, err := s.client.Load().Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()

	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}

	var reply struct {
		Response struct {
			UID     string `json:"uid"`
			Allowed bool   `json:"allowed"`
		} `json:"response"`
	}

	if err := json.Unmarshal(body, &reply); err != nil || answer.StatusCode != http.StatusOK || reply.Response.UID != "uid-1" || !reply.Response.Allowed {
		return fmt.Errorf("answer %d %.200q (%w), want it allowed", answer.StatusCode, body, err)
	}

	return nil
}

// done returns when each object was last written.
func (s *apiServer) done() map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()

	return maps.Clone(s.written)
}

func (s *apiServer) summary() string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return fmt.Sprintf("%d writes of %d objects, %d failed, slowest %v", s.calls, len(slices.Collect(maps.Keys(s.written))), s.failed, s.slowest)
}
