package simulation

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/keys"
)

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
