package paths_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// newBare returns the bare twin of overHTTP: a server of net/http that reads each body and answers
// 202, and a client of net/http for each runtime.
func newBare(b *testing.B, protocol string, l kit.Load) *calls {
	b.Helper()
	ca, operator, forwarders := lab.Must(testpki.NewCA("ca", testpki.Options{})), &kit.Counter{}, []core.Forwarder{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); err == nil && n > 0 {
			operator.Handled.Add(int64(l.Events))
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	server.EnableHTTP2 = protocol == "h2"
	server.TLS = keys.ServerTLSConfig(kit.Material(lab.Must(ca.Server("kcp", testpki.Options{})), ca))
	server.StartTLS()
	b.Cleanup(server.Close)
	for i := range l.Runtimes {
		config := lab.Must(keys.ClientTLSConfig(kit.Material(lab.Must(ca.Client(kit.RuntimeName(i), testpki.Options{})), ca), "127.0.0.1"))
		batch := contract.Claim(newBatch(l.Events), core.RuntimeID(kit.RuntimeName(i)))
		transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: server.EnableHTTP2}
		b.Cleanup(transport.CloseIdleConnections)
		forwarders = append(forwarders, bare{
			client: &http.Client{Transport: transport}, url: server.URL, body: lab.Must(contract.V3.Encode(&batch)).Body,
		})
	}
	return newCalls(b, operator, forwarders, l)
}

// bare posts the same body in each call.
type bare struct {
	client *http.Client
	url    string
	body   []byte
}

func (f bare) Forward(ctx context.Context, _ core.Manager, _ core.Batch) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url, bytes.NewReader(f.body))
	if err != nil {
		return err
	}
	answer, err := f.client.Do(request)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}
