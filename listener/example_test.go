package listener_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// Runtimes connect to the operator itself, with client certificates of one CA.
func ExampleNew() {
	caBundle := x509.NewCertPool() // the CA that issues the certificates of runtimes
	roots := func() *x509.CertPool { return caBundle }

	handler := core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
		fmt.Println("enqueue", d.Runtime, "for", d.Event.Watched)

		return nil
	})

	l, err := listener.New(
		listener.FromTLS(roots, listener.PeerOptions{}),
		listener.InsecureAllowAll(), // or SANPinning
		map[core.Manager]core.Handler{"lifecycle-manager": handler},
		listener.Options{
			Addr: ":8443",
			TLS:  &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS13},
		},
	)
	if err != nil {
		fmt.Println(err)

		return
	}

	// Then l.Start(ctx), or manager.Add(l) with controller-runtime.
	fmt.Println(l.Ready())
	// Output: not ready: the listener is not started
}

// A gateway terminates TLS and forwards the certificate of its client in a header.
func ExampleFromXFCC() {
	caBundle := x509.NewCertPool()
	peers := listener.FromXFCC(
		listener.ProxyAddresses(netip.MustParsePrefix("10.0.0.0/24")),
		func() *x509.CertPool { return caBundle },
		listener.PeerOptions{},
	)

	r := httptest.NewRequest(http.MethodPost, "/v2/lifecycle-manager/event", http.NoBody)
	r.RemoteAddr = "10.9.9.9:12345" // a pod that is not the gateway

	_, err := peers.Peer(r)
	fmt.Println(core.ReasonOf(err))
	// Output: untrusted_proxy
}

// A runtime may trigger itself if its certificate has its registered domain. With contract v1 an
// event names the owner to trigger. With v2 and v3 that is the runtime of the certificate.
func ExampleSANPinning() {
	registered := map[string]string{"runtime-a": "a.example", "runtime-b": "b.example"}
	verifier := listener.SANPinning(listener.DomainsFunc(
		func(_ context.Context, runtime core.RuntimeID, event *core.WatchEvent) (string, error) {
			name := cmp.Or(event.Owner.Name, string(runtime))

			domain, ok := registered[name]
			if !ok {
				return "", listener.Forbidden("owner_missing", fmt.Errorf("no owner %s", name))
			}

			return domain, nil
		}))

	peer := core.Peer{ID: "runtime-a", DNSNames: []string{"A.example."}}

	for _, owner := range []string{"", "runtime-a", "runtime-b", "runtime-c"} {
		event := core.WatchEvent{}
		event.Owner.Name = owner
		fmt.Println(verifier.Verify(context.Background(), peer, &event))
	}
	// Output:
	// <nil>
	// <nil>
	// sender may not trigger this: no SAN of the certificate equals the registered domain "b.example"
	// sender may not trigger this: no owner runtime-c
}

// The listener is also a handler, which another server can mount.
func ExampleListener_ServeHTTP() {
	l, err := listener.New(
		listener.PeersFunc(func(*http.Request) (core.Peer, error) { return core.Peer{ID: "runtime-a"}, nil }),
		listener.InsecureAllowAll(),
		map[core.Manager]core.Handler{
			"lifecycle-manager": core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
				fmt.Println(d.Runtime, d.Event.WatchedGVK.Kind, d.Event.Watched)

				return nil
			}),
		},
		listener.Options{},
	)
	if err != nil {
		fmt.Println(err)

		return
	}

	body := `{"watched":{"Namespace":"kyma-system","Name":"default"},"watchedGvk":{"group":"","version":"v1","kind":"ConfigMap"}}`
	r := httptest.NewRequest(http.MethodPost, "/v2/lifecycle-manager/event", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")

	w := httptest.NewRecorder()
	l.ServeHTTP(w, r)
	fmt.Println(w.Code)
	// Output:
	// runtime-a ConfigMap kyma-system/default
	// 200
}
