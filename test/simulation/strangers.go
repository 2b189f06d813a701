package simulation

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/keys"
)

// strangers is the number of clients with unfinished reviews. Together they announce as much as the agent has memory
// for reviews.
const strangers = 10

// openReviews makes strangers announce large reviews and send a part of each, until the end.
func (c *cluster) openReviews(part int) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	if a := c.endpoint(); a != nil {
		for i := range strangers {
			c.world.tasks.Go(func() { a.bother(ctx, i, part) })
		}
	}
	return cancel
}

// bother sends the first part of a review again whenever the agent closes the connection.
func (a *agent) bother(ctx context.Context, stranger, part int) {
	for ctx.Err() == nil && !a.killed.Load() {
		conn, err := a.own(a.cluster.world.network.connect(fmt.Sprintf("stranger %d", stranger), a.webhook, conditions{}))
		if err != nil {
			return
		}
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		secured := tls.Client(conn, a.cluster.world.pki.apiServer())
		length := announced(stranger)
		_, _ = fmt.Fprintf(secured, "POST /validate/%s HTTP/1.1\r\nHost: agent\r\nContent-Type: application/json\r\n"+
			"Content-Length: %d\r\n\r\n%s", a.cluster.world.plan.Managers[0], length, make([]byte, min(part, length-1)))
		_, _ = io.Copy(io.Discard, secured)
		stop()
		_ = conn.Close()
		sleep(time.Second)
	}
}

// announced returns the length of a stranger's review.
func announced(stranger int) int {
	lengths := []int{8 << 20, 1 << 20, 500 << 10, 20 << 10}
	return lengths[min(stranger, len(lengths)-1)]
}

// askWrongPaths requests unknown paths with the certificate of a runtime, on two connections, as fast as the
// answers arrive.
func (w *world) askWrongPaths(f Fault) {
	const connections = 2
	var (
		asking sync.WaitGroup
		served atomic.Int64
	)
	began := time.Now()
	for range connections {
		asking.Go(func() { w.ask(f, &served) })
	}
	asking.Wait()
	w.history.Served(w.plan.Runtimes[f.Runtime].Name, int(served.Load()), time.Since(began))
}

// ask counts the answers except 429.
func (w *world) ask(f Fault, served *atomic.Int64) {
	name := w.plan.Runtimes[f.Runtime].Name
	config, err := keys.ClientTLSConfig(&w.clusters[f.Runtime].keys, serverName)
	w.must(err)
	transport := &http.Transport{TLSClientConfig: config, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return w.network.dial(ctx, name, serverName)
	}}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), f.For)
	defer cancel()
	for ctx.Err() == nil {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+serverName+"/no/such/page", http.NoBody)
		w.must(err)
		answer, err := transport.RoundTrip(request)
		if err != nil {
			sleep(10 * time.Millisecond)
			continue
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusTooManyRequests {
			served.Add(1)
		}
	}
}
