// Package paths measures events from the forwarder of an agent to the handler of an operator, over
// HTTP and over NATS JetStream, with TLS and loopback. Both ends are in one process, a NATS server is
// another. See docs/maintainers/measurements.md.
package paths_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// BenchmarkV3 sends events of contract v3 over native mTLS, with SAN pinning against a cache of
// 10,000 objects. One operation is one call of Forward. Allocations are those of both ends. Rounds
// alternate with those of twins that carry the same bytes: "bare" and "lean" are the ratios of the
// processor times (see [newTwin]).
func BenchmarkV3(b *testing.B) {
	pinned := listener.SANPinning(newRuntimes(b))
	for _, load := range loads() {
		for _, protocol := range []string{"h2", "http/1.1"} {
			b.Run(fmt.Sprintf("%s/%s", load, protocol), func(b *testing.B) {
				calls := overHTTP(b, pinned, protocol, load)
				bareTwin, leanTwin := newTwin(b, nil, protocol, load), newTwin(b, pinned, protocol, load)
				b.ReportAllocs()
				b.ResetTimer()
				var all, bare, lean cost
				for left := b.N; left > 0; left -= calls.round() {
					n := min(left, calls.round())
					all.measure(func() { calls.run(b, n) })
					b.StopTimer()
					bare.measure(func() { bareTwin.run(b, n) })
					lean.measure(func() { leanTwin.run(b, n) })
					b.StartTimer()
				}
				b.StopTimer()
				all.report(b, b.N*load.events)
				b.ReportMetric(all.processor.Seconds()/bare.processor.Seconds(), "bare")
				b.ReportMetric(all.processor.Seconds()/lean.processor.Seconds(), "lean")
			})
		}
	}
}

// timeout bounds each step of the lean twin. No step takes so long.
const timeout = time.Minute

// newTwin returns the twin of overHTTP: a server and clients of net/http. With a verifier the twin is
// lean: it has timeouts as overHTTP has them, reads each event with encoding/json, and asks the
// verifier. Without one it is bare: it reads the bytes. Both answer 202.
func newTwin(b *testing.B, verifier core.Verifier, protocol string, l load) *calls {
	b.Helper()
	ca, operator, forwarders := lab.Must(testpki.NewCA("ca", testpki.Options{})), &counter{}, []core.Forwarder{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if read(r, verifier) {
			operator.handled.Add(int64(l.events))
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	server.EnableHTTP2 = protocol == "h2"
	server.TLS = keys.ServerTLSConfig(lab.Material(lab.Must(ca.Server("kcp", testpki.Options{})), ca))
	client := http.Client{}
	if verifier != nil {
		client.Timeout = timeout
		server.Config.ReadTimeout, server.Config.WriteTimeout, server.Config.IdleTimeout = timeout, timeout, timeout
	}
	server.StartTLS()
	b.Cleanup(server.Close)
	for i := range l.runtimes {
		config := lab.Must(keys.ClientTLSConfig(lab.Material(leafOf(ca, runtimeID(i)), ca), "127.0.0.1"))
		batch := contract.Claim(newBatch(l.events), runtimeID(i))
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

// objects is the number of runtimes that the control plane has registered.
const objects = 10_000

func kymaKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

// newRuntimes returns the registered runtimes in a cache of controller-runtime with its informer and
// its indexes.
func newRuntimes(b *testing.B) *controllerruntime.Runtimes {
	b.Helper()
	ca := lab.Must(testpki.NewCA("ca", testpki.Options{}))
	servers := kit.StartServers(b, ca)
	store := servers.Add("control-plane", kymaKind(), "kymas")
	for i := range objects {
		name := kit.RuntimeName(i)
		store.Put(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: "kcp-system", Name: name, Labels: map[string]string{"kyma-project.io/runtime-id": name},
			Annotations: map[string]string{controllerruntime.DomainAnnotation: lab.RuntimeDomain(core.RuntimeID(name))},
		}})
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(kymaKind(), meta.RESTScopeNamespace)
	config := &rest.Config{Host: servers.URL + "/control-plane", TLSClientConfig: rest.TLSClientConfig{CAData: ca.PEM}}
	kymas := lab.Must(cache.New(config, cache.Options{Mapper: mapper, Scheme: runtime.NewScheme()}))
	runtimes := lab.Must(controllerruntime.NewRuntimes(b.Context(), kymas, kymaKind(), controllerruntime.ByName,
		controllerruntime.RuntimesOptions{}))
	go func() { _ = kymas.Start(b.Context()) }()
	if !kymas.WaitForCacheSync(b.Context()) {
		b.Fatal("the cache does not sync")
	}
	return runtimes
}
