package fairness

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// identity is what a runtime shows, and whom it trusts.
type identity struct {
	Name string `json:"name"`
	CA   []byte `json:"ca"`
	Cert []byte `json:"cert"`
	Key  []byte `json:"key"`
}

// sender is one connection of a runtime.
type sender struct {
	client *http.Client
	url    string
	body   []byte
}

func newSender(id *identity, addr string) (*sender, error) {
	pair, err := tls.X509KeyPair(id.Cert, id.Key)
	if err != nil {
		return nil, err
	}

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(id.CA)

	body, err := contract.V3.Encode([]core.WatchEvent{{
		Kind: core.KindChanged, ID: "1", Source: core.RuntimeID(id.Name), Time: time.Now(),
		Watched:    types.NamespacedName{Namespace: "default", Name: "demo"},
		WatchedGVK: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
	}})
	if err != nil {
		return nil, err
	}

	return &sender{
		client: &http.Client{
			Timeout: 10 * time.Second,
			Transport: &http.Transport{
				ForceAttemptHTTP2: true,
				TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{pair}},
			},
		},
		url:  "https://" + addr + contract.V3.Path(manager),
		body: body,
	}, nil
}

// send returns the status of the answer, and its Retry-After.
func (s *sender) send(ctx context.Context) (status int, retryAfter string, err error) {
	return s.do(ctx, http.MethodPost)
}

func (s *sender) do(ctx context.Context, method string) (status int, retryAfter string, err error) {
	request, err := http.NewRequestWithContext(ctx, method, s.url, bytes.NewReader(s.body))
	if err != nil {
		return 0, "", err
	}

	request.Header.Set("Content-Type", contract.V3.ContentType())

	response, err := s.client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()

	_, err = io.Copy(io.Discard, response.Body)

	return response.StatusCode, response.Header.Get("Retry-After"), err
}

func (s *sender) close() { s.client.CloseIdleConnections() }

func mustSender(t testing.TB, id *identity, addr string) *sender {
	t.Helper()

	s, err := newSender(id, addr)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(s.close)

	return s
}
