// Package remotetest tests operators that read from clusters of other people. [Run] puts one
// hostile API server after another behind a kubeconfig and measures the cost of a reconcile.
package remotetest

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Spoil answers a request instead of an API server. honest is the body that the API server would
// have returned. Spoil returns false to send the honest answer.
type Spoil func(w http.ResponseWriter, request *http.Request, honest []byte) bool

// Server is an API server of a cluster, over HTTP/2 with TLS. It stores objects of any kind,
// without merging and without checking them. It is safe for concurrent use.
type Server struct {
	server  *httptest.Server
	spoil   atomic.Pointer[Spoil]
	arrived atomic.Int64

	mu     sync.Mutex
	stored map[string][]byte // by path
}

// NewServer starts a server until the test ends.
func NewServer(t testing.TB) *Server {
	t.Helper()
	s := &Server{stored: make(map[string][]byte)}
	s.server = httptest.NewUnstartedServer(s)
	s.server.EnableHTTP2 = true
	s.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.server.StartTLS()
	t.Cleanup(func() {
		s.server.CloseClientConnections()
		s.server.Close()
	})
	return s
}

// SetSpoil makes the server hostile from the next request on, or honest if spoil is nil.
func (s *Server) SetSpoil(spoil Spoil) {
	if spoil == nil {
		s.spoil.Store(nil)
		return
	}
	s.spoil.Store(&spoil)
}

// Arrived returns the number of requests that were answered with a hostile answer.
func (s *Server) Arrived() int64 { return s.arrived.Load() }

// URL returns the URL of the server.
func (s *Server) URL() string { return s.server.URL }

// Kubeconfig returns a kubeconfig with the address and the CA of the server.
func (s *Server) Kubeconfig() []byte {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.server.Certificate().Raw})
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"a",
		"contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],"users":[{"name":"a","user":{"token":"t"}}],
		"clusters":[{"name":"a","cluster":{"server":%q,"certificate-authority-data":%q}}]}`,
		s.server.URL, base64.StdEncoding.EncodeToString(ca))
}

// Put stores an object under the path of its URL, such as /api/v1/namespaces/a/configmaps/b.
func (s *Server) Put(path string, object any) {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err) // The test has made it.
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored[path] = text
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	status, answer := s.answerHonestly(request)
	if spoil := s.spoil.Load(); spoil != nil {
		s.arrived.Add(1)
		if (*spoil)(w, request, answer) {
			return
		}
		s.arrived.Add(-1)
	}

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(answer) //nolint:gosec // JSON, and no browser reads it.
}

func (s *Server) answerHonestly(request *http.Request) (status int, answer []byte) {
	body, _ := io.ReadAll(request.Body)
	path := request.URL.Path
	s.mu.Lock()
	defer s.mu.Unlock()

	switch request.Method {
	case http.MethodPost:
		path += "/" + nameOf(body)
		s.stored[path] = completed(body)
	case http.MethodPatch, http.MethodPut:
		s.stored[path] = completed(body)
	case http.MethodDelete:
		delete(s.stored, path)
		return http.StatusOK, []byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	}

	if stored := s.stored[path]; stored != nil {
		return http.StatusOK, stored
	}
	if isList(path) {
		return http.StatusOK, s.listObjects(path, request.Header.Get("Accept"))
	}
	return http.StatusNotFound,
		[]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
}

// isList reports whether a path is the path of a list, as /api/v1/configmaps and
// /apis/apps/v1/namespaces/a/deployments are.
func isList(path string) bool {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	prefix := 2 // api, version
	if parts[0] == "apis" {
		prefix = 3
	}
	return len(parts) > prefix && (len(parts)-prefix)%2 == 1
}

// listObjects returns all objects of the kind of a path.
func (s *Server) listObjects(path, accept string) []byte {
	if strings.HasSuffix(path, "/endpointslices") {
		return []byte(`{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1",
			"items":[{"endpoints":[{"addresses":["192.0.2.1"]}]}]}`)
	}

	items := []json.RawMessage{}
	list := map[string]any{"kind": "List", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": "1"}}
	resource := path[strings.LastIndex(path, "/")+1:]
	for _, other := range slices.Sorted(maps.Keys(s.stored)) {
		if !strings.Contains(other, "/"+resource+"/") {
			continue
		}

		items = append(items, s.stored[other])
		var of struct {
			Kind       string `json:"kind"`
			APIVersion string `json:"apiVersion"`
		}
		_ = json.Unmarshal(s.stored[other], &of)
		list["kind"] = of.Kind + "List"
		list["apiVersion"] = of.APIVersion
	}

	if strings.Contains(accept, "as=PartialObjectMetadataList") {
		list["kind"] = "PartialObjectMetadataList"
		list["apiVersion"] = "meta.k8s.io/v1"
	}
	list["items"] = items
	text, _ := json.Marshal(list) //nolint:errchkjson // Of decoded JSON.
	return text
}

func nameOf(body []byte) string {
	var object struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	_ = json.Unmarshal(body, &object)
	return object.Metadata.Name
}

// completed adds the fields that an API server and a controller add.
func completed(body []byte) []byte {
	var object map[string]any
	_ = json.Unmarshal(body, &object)
	meta, _ := object["metadata"].(map[string]any)
	if meta == nil {
		return body
	}

	meta["uid"] = "b8c7"
	meta["resourceVersion"] = "1"
	meta["generation"] = 1
	if object["kind"] == "Deployment" {
		object["status"] = map[string]any{
			"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2,
		}
	}

	answer, _ := json.Marshal(object) //nolint:errchkjson // Of decoded JSON.
	return answer
}
