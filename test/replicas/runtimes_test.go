package replicas_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
	"github.com/runtime-watcher/runtime-watcher/test/replicas/replica"
)

// runtimes are agents, each with the webhook of a runtime that is written to all the time.
type runtimes struct {
	o      *operator
	agents []*lab.Agent
	client *http.Client

	mu sync.Mutex
	// written has the time before the review of each object, which is created once. pending has
	// those that are not known to be enqueued.
	written, pending map[string]time.Duration
}

// startRuntimes starts agents with the settings of today's deployments.
func startRuntimes(o *operator, count int) *runtimes {
	o.t.Helper()
	r := &runtimes{o: o, written: map[string]time.Duration{}, pending: map[string]time.Duration{}, client: &http.Client{
		Timeout: patience,
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: o.pki.CA.Pool()}, MaxIdleConnsPerHost: writers,
		},
	}}
	o.t.Cleanup(r.client.CloseIdleConnections)
	for n := range count {
		name := fmt.Sprintf("%s-runtime-%d", o.name, n)
		lab.AddRuntime(o.t, o.plane, name, name+".example.com")
		r.agents = append(r.agents, lab.StartAgent(o.t, o.pki.RuntimeVolume(name, name+".example.com"), o.gateway.Addr,
			lab.AgentOptions{Env: map[string]string{"KCP_CONTRACT": "v3", "MANAGERS": replica.Component}}))
	}
	return r
}

// writers bounds the reviews at the same time, as an API server does.
const writers = 8

// write creates that many objects a second, in turn in each runtime, until ctx ends.
func (r *runtimes) write(ctx context.Context, perSecond float64) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	next := make(chan int)
	var reviews sync.WaitGroup
	for range writers {
		reviews.Go(func() {
			for n := range next {
				r.create(n)
			}
		})
	}
	started := time.Now()
	for n := 0; ctx.Err() == nil; <-tick.C {
		for ; n < int(time.Since(started).Seconds()*perSecond); n++ {
			next <- n
		}
	}
	close(next)
	reviews.Wait()
}

func (r *runtimes) create(n int) {
	object := fmt.Sprint("object-", n)
	r.mu.Lock()
	r.written[object] = record.Now()
	r.pending[object] = r.written[object]
	r.mu.Unlock()
	r.review(r.agents[n%len(r.agents)], object)
}

// missing returns the number of writes before a time that are not enqueued.
func (r *runtimes) missing(before time.Duration) (n int) {
	r.o.t.Helper()
	r.o.read()
	r.mu.Lock()
	defer r.mu.Unlock()
	for object, at := range r.pending {
		if _, done := r.o.enqueued[object]; done {
			delete(r.pending, object)
		} else if at < before {
			n++
		}
	}
	return n
}

// delays returns the time from each write until it was enqueued.
func (r *runtimes) delays() (delays []time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for object, at := range r.written {
		delays = append(delays, r.o.enqueued[object]-at)
	}
	return delays
}

func (r *runtimes) review(agent *lab.Agent, object string) {
	const review = `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"uid-1",` +
		`"kind":{"group":"","version":"v1","kind":"ConfigMap"},"resource":{"group":"","version":"v1",` +
		`"resource":"configmaps"},"name":%[1]q,"namespace":"default","operation":"CREATE","userInfo":{},` +
		`"dryRun":false,"oldObject":null,"object":{"apiVersion":"v1","kind":"ConfigMap",` +
		`"metadata":{"name":%[1]q,"namespace":"default"},"data":{"a":"b"}}}}`
	url := "https://" + lab.Address(agent.WebhookPort) + "/validate/" + replica.Component + "?timeout=10s"
	request := must(http.NewRequestWithContext(context.Background(), http.MethodPost, url,
		strings.NewReader(fmt.Sprintf(review, object))))
	request.Header.Set("Content-Type", "application/json")
	// A request on a connection that the agent has just closed is sent again.
	request.Header["X-Idempotency-Key"] = nil
	answer, err := r.client.Do(request)
	if err != nil {
		r.o.t.Errorf("a review failed: %v", err)
		return
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(body), `"allowed":true`) {
		r.o.t.Errorf("answer %d %.200q (%v), want it allowed", answer.StatusCode, body, err)
	}
}
