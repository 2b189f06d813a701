package listener_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// A body that does not arrive has no slot, so that it does not cost other runtimes their requests.
func TestSlowBodyHasNoSlotOfTheRelay(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	r.options.MaxInFlight = 1
	r.start(t, native, true)
	standby := r.start(t, native, false)
	r.beginBody(t, standby.address(), r.runtime(t, runtimeA))
	response, body := r.post(t, standby.address(), r.runtime(t, runtimeB), contract.V2, bodyV2, nil)
	if response.StatusCode != http.StatusOK {
		t.Errorf("answer %d %s while another runtime sends no body, want 200", response.StatusCode, body)
	}
}

// beginBody sends a request without its body, and returns when the receiver reads that.
func (r *replicas) beginBody(tb testing.TB, address string, shown *leaf) {
	tb.Helper()
	config := r.client(shown)
	config.ServerName = "127.0.0.1"
	conn, err := (&tls.Dialer{Config: config}).DialContext(tb.Context(), "tcp", address)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: kcp\r\nContent-Type: %s\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n",
		contract.V2.Path(manager), contract.V2.ContentType(), len(bodyV2)); err != nil {
		tb.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || !strings.Contains(line, "100 Continue") {
		tb.Fatalf("answer %q, error %v, want 100 Continue", line, err)
	}
}

// A batch that the leader cannot take as a whole in time is answered in part, so that it becomes
// smaller with each attempt.
func TestRelayWaitsForAnswersInPart(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	r.options.HandleTimeout = 200 * time.Millisecond
	r.before = func(ctx context.Context, d core.Delivery) error {
		if d.Event.Watched.Name == "1" {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}
	leader, standby := r.start(t, native, true), r.start(t, native, false)
	a := r.runtime(t, runtimeA)
	batch := string(encode(t, join(change(runtimeA, 1), change(runtimeA, 2))))
	direct, directBody := r.post(t, leader.address(), a, contract.V3, batch, nil)
	relayed, relayedBody := r.post(t, standby.address(), a, contract.V3, batch, nil)
	if relayed.StatusCode != direct.StatusCode || relayedBody != directBody {
		t.Errorf("relayed %d %s, direct %d %s, want the same", relayed.StatusCode, relayedBody, direct.StatusCode, directBody)
	}
}

// A runtime that gives up its requests costs the replicas no handshakes with each other.
func TestGivenUpRequestKeepsTheConnectionToTheLeader(t *testing.T) {
	t.Parallel()
	inside, free := make(chan struct{}), make(chan struct{})
	r := newReplicas(t)
	r.before = func(context.Context, core.Delivery) error {
		inside <- struct{}{}
		<-free
		return nil
	}
	leader, standby := r.start(t, native, true), r.start(t, native, false)
	transport := &http.Transport{TLSClientConfig: r.client(r.runtime(t, runtimeA))}
	transport.TLSClientConfig.ServerName = ""
	t.Cleanup(transport.CloseIdleConnections)
	const attempts = 3
	for range attempts {
		ctx, giveUp := context.WithCancel(t.Context())
		request, err := http.NewRequestWithContext(
			ctx, http.MethodPost, "https://"+standby.address()+contract.V2.Path(manager), strings.NewReader(bodyV2))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", contract.V2.ContentType())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if response, err := transport.RoundTrip(request); err == nil {
				_ = response.Body.Close()
				t.Error("a request that is given up has an answer")
			}
		}()
		<-inside
		giveUp()
		<-done
		free <- struct{}{}
		eventually(t, func() bool {
			_, answers := standby.taken()
			return len(answers) == 1
		})
	}
	if have := r.accepted.Load(); have != 1 {
		t.Errorf("%d connections between replicas for %d requests, want 1", have, attempts)
	}
	if delivered, _ := leader.taken(); len(delivered) != attempts {
		t.Errorf("%d deliveries, want %d", len(delivered), attempts)
	}
}

// The configuration of an operator may offer HTTP/2, which a relay does not speak.
func TestRelayOffersItsOwnProtocol(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	r.protocols = []string{"h2", "http/1.1"}
	r.start(t, native, true)
	standby := r.start(t, native, false)
	response, body := r.post(t, standby.address(), r.runtime(t, runtimeA), contract.V2, bodyV2, nil)
	if response.StatusCode != http.StatusOK {
		t.Errorf("answer %d %s, want 200", response.StatusCode, body)
	}
}

// While no replica leads, the next request at the same replica fails as well. Without a wait, a
// runtime sends each request three times. Without a connection that stays open, each of them costs
// the replicas a handshake.
func TestRelayAsksToWaitInAnElection(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	standby := r.start(t, native, false)
	r.leader.Store(&r.start(t, native, false).relay)
	for range 3 {
		response, body := r.post(t, standby.address(), r.runtime(t, runtimeA), contract.V2, bodyV2, nil)
		wait := response.Header.Get("Retry-After")
		if response.StatusCode != http.StatusServiceUnavailable || wait == "" {
			t.Errorf("answer %d %s, Retry-After %q, want 503 with a wait", response.StatusCode, body, wait)
		}
	}
	if have := r.accepted.Load(); have != 1 {
		t.Errorf("%d connections between replicas for 3 requests, want 1", have)
	}
}

// A runtime may show certificates that nothing needs. They are not sent to the leader, and never
// stand for its own.
func TestRelayOfLargeChains(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	leader, standby := r.start(t, native, true), r.start(t, native, false)
	large := func(c *x509.Certificate) {
		for i := range 1000 {
			c.DNSNames = append(c.DNSNames, fmt.Sprintf("%04d.large.example.with.a.name", i))
		}
	}
	a, b := r.runtime(t, runtimeA), r.runtime(t, runtimeB)
	useless := r.ca.client(t, "useless", large)
	a.others = []*leaf{useless, useless, useless}
	tooLarge := r.ca.client(t, string(runtimeA), dnsNames("a.example"), large)
	tooLarge.others = []*leaf{b}
	for _, test := range []struct {
		name  string
		shown *leaf
		want  int
	}{{"useless certificates", a, 200}, {"no room, and the certificate of another", tooLarge, 503}} {
		response, body := r.post(t, standby.address(), test.shown, contract.V2, bodyV2, nil)
		if response.StatusCode != test.want {
			t.Errorf("%s: answer %d %s, want %d", test.name, response.StatusCode, body, test.want)
		}
	}
	delivered, _ := leader.taken()
	for _, d := range delivered {
		if d.Runtime != runtimeA {
			t.Errorf("triggered %s", d.Runtime)
		}
	}
}

// The leader observes a relayed heartbeat, which keeps the runtime fresh, while its handler has as
// many events as it takes.
func TestRelayedHeartbeatsAreObservedUnderLoad(t *testing.T) {
	t.Parallel()
	inside, free := make(chan struct{}), make(chan struct{})
	r := newReplicas(t)
	r.options.MaxInFlight = 1
	r.before = func(context.Context, core.Delivery) error {
		inside <- struct{}{}
		<-free
		return nil
	}
	leader, standby := r.start(t, native, true), r.start(t, native, false)
	a, b := r.runtime(t, runtimeA), r.runtime(t, runtimeB)
	var sending sync.WaitGroup
	sending.Go(func() { r.post(t, standby.address(), a, contract.V3, string(encode(t, change(runtimeA, 1))), nil) })
	<-inside
	response, body := r.post(t, standby.address(), b, contract.V3, string(encode(t, heartbeat(runtimeB, 1))), nil)
	close(free)
	sending.Wait()
	if response.StatusCode != http.StatusAccepted {
		t.Errorf("answer %d %s to a heartbeat, want 202", response.StatusCode, body)
	}
	if s := leader.watched.Get(runtimeB, manager); s.State != fleet.Fresh {
		t.Errorf("the leader finds the runtime %s, want fresh", s.State)
	}
}
