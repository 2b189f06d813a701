package paths_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// timeout bounds each step of the lean twin. No step takes so long.
const timeout = time.Minute

// newTwin returns the twin of overHTTP: a server and clients of net/http. With a verifier the twin is
// lean: it has timeouts as overHTTP has them, reads each event with encoding/json, and asks the
// verifier. Without one it is bare: it reads the bytes. Both answer 202.
func newTwin(b *testing.B, verifier core.Verifier, protocol string, l kit.Load) *calls {
	b.Helper()
	ca, operator, forwarders := lab.Must(testpki.NewCA("ca", testpki.Options{})), &kit.Counter{}, []core.Forwarder{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if read(r, verifier) {
			operator.Handled.Add(int64(l.Events))
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	server.EnableHTTP2 = protocol == "h2"
	server.TLS = keys.ServerTLSConfig(kit.Material(lab.Must(ca.Server("kcp", testpki.Options{})), ca))
	client := http.Client{}
	if verifier != nil {
		client.Timeout = timeout
		server.Config.ReadTimeout, server.Config.WriteTimeout, server.Config.IdleTimeout = timeout, timeout, timeout
	}
	server.StartTLS()
	b.Cleanup(server.Close)
	for i := range l.Runtimes {
		id := core.RuntimeID(kit.RuntimeName(i))
		leaf := lab.Must(ca.Client(string(id), testpki.Options{DNSNames: []string{lab.RuntimeDomain(id)}}))
		config := lab.Must(keys.ClientTLSConfig(kit.Material(leaf, ca), "127.0.0.1"))
		batch := contract.Claim(newBatch(l.Events), id)
		transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: server.EnableHTTP2}
		b.Cleanup(transport.CloseIdleConnections)
		client.Transport = transport
		forwarders = append(forwarders, bare{client: client, url: server.URL, body: lab.Must(contract.V3.Encode(&batch)).Body})
	}
	return newCalls(b, operator, forwarders, l)
}

// read reads a body, and reports whether the verifier lets all events of it pass.
func read(r *http.Request, verifier core.Verifier) bool {
	if verifier == nil {
		n, err := io.Copy(io.Discard, r.Body)
		return err == nil && n > 0
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	var events []struct {
		ID, Source, Type, Time, Epoch, Sequence string
		Data                                    struct {
			Watched          types.NamespacedName
			WatchedGVK       schema.GroupVersionKind
			Operation, Field string
			Generation       int64
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&events); err != nil { //nolint:musttag // Cases of names do not matter.
		return false
	}
	leaf := r.TLS.PeerCertificates[0]
	peer := core.Peer{ID: core.RuntimeID(leaf.Subject.CommonName), DNSNames: leaf.DNSNames}
	for _, event := range events {
		if verifier.Verify(ctx, peer, &core.WatchEvent{Watched: event.Data.Watched, WatchedGVK: event.Data.WatchedGVK}) != nil {
			return false
		}
	}
	return true
}

// bare posts the same body in each call.
type bare struct {
	client http.Client
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
