package fairness

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

// connectedCalls is how many connections of the API server are there, and callEvery the time between two calls on each.
const (
	connectedCalls = 16
	callEvery      = 50 * time.Millisecond
)

// door is a real agent, and its API server on another address than those who knock.
type door struct {
	t     testing.TB
	pki   *rig.PKI
	agent *rig.Agent
	calls []*http.Client
}

// newDoor starts an agent that lets so many handshakes compute at once, 0 is its default.
func newDoor(t testing.TB, handshakes int) *door {
	t.Helper()

	env := map[string]string{"HEARTBEAT_INTERVAL": "1h", "LOG_LEVEL": "info"}
	if handshakes > 0 {
		env["WEBHOOK_MAX_HANDSHAKES"] = strconv.Itoa(handshakes)
	}

	d := &door{t: t, pki: rig.NewPKI(t)}
	d.agent = rig.StartAgent(t, d.pki.RuntimeVolume("runtime-1", "runtime-1.example.com"), rig.Address(rig.FreePort(t)), rig.AgentOptions{Env: env})

	for range connectedCalls {
		client := d.apiServer()
		d.calls = append(d.calls, client)

		if _, err := d.call(client); err != nil {
			t.Fatal(err)
		}
	}

	return d
}

// apiServer is a client with a connection of its own, which is made by its first call.
func (d *door) apiServer() *http.Client {
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: d.pki.CA.Pool(), ServerName: "localhost"}}
	d.t.Cleanup(transport.CloseIdleConnections)

	return &http.Client{Timeout: 10 * time.Second, Transport: transport}
}

// call asks for a review of a dry run, which sends nothing.
func (d *door) call(client *http.Client) (time.Duration, error) {
	const review = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"uid-1","kind":{"version":"v1","kind":"ConfigMap"},` +
		`"name":"one","namespace":"default","operation":"CREATE","dryRun":true,"object":{"metadata":{"name":"one","namespace":"default"}}}}`

	request, err := http.NewRequestWithContext(d.t.Context(), http.MethodPost, "https://"+rig.Address(d.agent.WebhookPort)+"/validate/kyma", strings.NewReader(review))
	if err != nil {
		return 0, err
	}

	request.Header.Set("Content-Type", "application/json")

	began := time.Now()

	answer, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()

	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return 0, err
	}

	if answer.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("answer %s", answer.Status)
	}

	return time.Since(began), nil
}

// during has the API server call for a while, on connections that are there and, one after the other, on new ones.
func (d *door) during(round time.Duration) arrivals {
	d.t.Helper()

	ctx, cancel := context.WithTimeout(d.t.Context(), round)
	defer cancel()

	a := arrivals{measured{refused: make(map[int]int)}, measured{refused: make(map[int]int)}}

	var (
		mu    sync.Mutex
		group sync.WaitGroup
	)

	note := func(m *measured, client *http.Client) {
		took, err := d.call(client)

		mu.Lock()
		defer mu.Unlock()

		if err != nil {
			m.refused[0]++
		} else {
			m.took = append(m.took, took)
		}
	}

	for _, client := range d.calls {
		group.Go(func() {
			tick := time.NewTicker(callEvery)
			defer tick.Stop()

			for {
				select {
				case <-tick.C:
					note(&a.quiet, client)
				case <-ctx.Done():
					return
				}
			}
		})
	}

	for ctx.Err() == nil {
		client := d.apiServer()
		note(&a.fresh, client)
		client.CloseIdleConnections()
	}

	group.Wait()
	slices.Sort(a.quiet.took)
	slices.Sort(a.fresh.took)

	return a
}

// knockingAtTheWebhook besieges an agent with 400 handshakes at once.
func knockingAtTheWebhook(t testing.TB, handshakes, rounds int, round time.Duration) siege {
	t.Helper()

	d := newDoor(t, handshakes)

	return besiege(t, knockerSettings{Addr: rig.Address(d.agent.WebhookPort), Connections: 400}, rounds, round, d.during)
}

// BenchmarkKnockingAtTheWebhook is what handshakes that strangers begin cost an API server, on connections that are there and on new ones.
func BenchmarkKnockingAtTheWebhook(b *testing.B) { benchmarkBound(b, knockingAtTheWebhook) }

// Handshakes that strangers begin delay an API server's calls far less than they would without bound, on connections that are there and on new
// ones. Both are measured with the same flood, as times say little on a busy machine; on a very busy one, it hardly comes.
func TestKnockingDelaysReviewsLess(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for some seconds, which -short leaves out")
	}

	const tries = 3

	for try := 1; ; try++ {
		besieged := knockingAtTheWebhook(t, 0, 1, 2*time.Second)
		bound, free := besieged.knockedAt, knockingAtTheWebhook(t, unbounded, 1, 2*time.Second).knockedAt

		if flood := besieged.flood; flood.Answered == 0 || len(bound.quiet.took) == 0 || len(bound.fresh.took) == 0 || sum(bound.quiet.refused)+sum(bound.fresh.refused) > 0 {
			t.Fatalf("flood %+v, %d calls and %d on new connections, failed were %v and %v: want a flood, calls, and none failed",
				flood, len(bound.quiet.took), len(bound.fresh.took), bound.quiet.refused, bound.fresh.refused)
		}

		connected, fresh := [2]time.Duration{bound.quiet.p(50), free.quiet.p(50)}, [2]time.Duration{bound.fresh.p(100), free.fresh.p(100)}
		if 2*connected[0] < connected[1] && 2*fresh[0] < fresh[1] {
			return
		}

		if try == tries {
			t.Fatalf("with the bound and without it, half of the calls took more than %v, and the slowest on a new connection %v: want half as long with it",
				connected, fresh)
		}
	}
}
