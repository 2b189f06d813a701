package kit

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// Servers simulates API servers behind one address. The name of the host, or the first part of a
// path below an IP address, selects a server. The servers support discovery, gets, lists, watches,
// creation and server-side apply. Deployments are ready immediately, and each Service has an
// endpoint.
type Servers struct {
	*httptest.Server

	// Requests counts all requests except watches. Watches and Connections count what is open.
	Requests, Watches, Connections atomic.Int64
	// Latency is the time of each answer, as a [time.Duration].
	Latency atomic.Int64
	// Read is called before an object of a server is read. Default: nothing.
	Read func(server string)

	mu     sync.Mutex
	stores map[string]*Store
	bodies map[digest]map[string]any // equal ones of all servers are kept once
}

type digest [16]byte

// Store contains the objects of one API server. All listed objects have the same kind.
type Store struct {
	servers  *Servers
	name     string
	kind     schema.GroupVersionKind
	resource string
	version  int
	objects  map[string]stored // by path, or by name for those of one kind
	order    []string
	watchers map[chan map[string]any]bool
}

type stored struct {
	body                digest
	version, generation int
}

// StartServers starts servers with a certificate of ca for this machine and *.example.com.
func StartServers(t testing.TB, ca *testpki.CA) *Servers {
	t.Helper()
	s := &Servers{stores: map[string]*Store{}, bodies: map[digest]map[string]any{}, Read: func(string) {}}
	s.Server = httptest.NewUnstartedServer(s)
	s.EnableHTTP2 = true
	leaf := lab.Must(ca.Server("kubernetes", testpki.Options{
		DNSNames: []string{"*.example.com"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{leaf.TLS}, MinVersion: tls.VersionTLS13}
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state { //nolint:exhaustive // The others are in between.
		case http.StateNew:
			s.Connections.Add(1)
		case http.StateClosed, http.StateHijacked:
			s.Connections.Add(-1)
		}
	}
	s.StartTLS()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// Kubeconfig returns the kubeconfig of a server, with the name in its certificate.
func Kubeconfig(url, name string, ca *testpki.CA) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c",
		"contexts":[{"name":"c","context":{"cluster":"c","user":"c"}}],"users":[{"name":"c","user":{"token":"t"}}],
		"clusters":[{"name":"c","cluster":{"server":%q,"tls-server-name":%q,"certificate-authority-data":%s}}]}`,
		url, name, lab.Must(json.Marshal(ca.PEM)))
}

// Add adds a server with objects of a kind.
func (s *Servers) Add(name string, kind schema.GroupVersionKind, resource string) *Store {
	at := s.at(name)
	at.kind = kind
	at.resource = resource
	return at
}

func (s *Servers) at(name string) *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stores[name] == nil {
		s.stores[name] = &Store{servers: s, name: name, objects: map[string]stored{}, watchers: map[chan map[string]any]bool{}}
	}
	return s.stores[name]
}

// Put stores an object, sends it to the watchers, and returns the previous version.
func (s *Store) Put(object client.Object) (base int) {
	object.GetObjectKind().SetGroupVersionKind(s.kind)
	text := lab.Must(json.Marshal(object))
	s.servers.mu.Lock()
	defer s.servers.mu.Unlock()
	base = s.objects[object.GetName()].version
	written := lab.Must(s.write(object.GetName(), text, true))
	for watcher := range s.watchers {
		watcher <- written
	}
	return base
}

// write stores an object, and returns it. One that has not changed keeps its version, unless it must
// not.
func (s *Store) write(key string, text []byte, anew bool) (map[string]any, error) {
	sum := sha256.Sum256(text)
	hash := digest(sum[:16])
	if s.servers.bodies[hash] == nil {
		var body map[string]any
		if err := json.Unmarshal(text, &body); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		s.servers.bodies[hash] = body
	}
	known, exists := s.objects[key]
	if !exists {
		s.order = append(s.order, key)
	}
	if anew || known.body != hash {
		s.version++
		s.objects[key] = stored{hash, s.version, known.generation + 1}
	}
	return s.object(key), nil
}

// object returns an object with the fields that an API server and its controllers set.
func (s *Store) object(key string) map[string]any {
	at := s.objects[key]
	object := maps.Clone(s.servers.bodies[at.body])
	metadata := map[string]any{"uid": fmt.Sprintf("%.16x", sha256.Sum256([]byte(s.name+key)))}
	given, _ := object["metadata"].(map[string]any)
	maps.Copy(metadata, given)
	metadata["generation"], metadata["resourceVersion"] = at.generation, strconv.Itoa(at.version)
	object["metadata"] = metadata
	if object["kind"] == "Deployment" {
		object["status"] = map[string]any{
			"observedGeneration": at.generation, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2,
		}
	}
	return object
}

// fixed are the answers that are the same for all servers.
func fixed(path string) any {
	switch {
	case path == "api":
		return json.RawMessage(`{"kind":"APIVersions","versions":["v1"]}`)
	case path == "apis":
		return json.RawMessage(`{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`)
	case path == "api/v1":
		return json.RawMessage(`{"kind":"APIResourceList","groupVersion":"v1","resources":[` +
			`{"name":"secrets","namespaced":true,"kind":"Secret","verbs":["get","list","watch"]},` +
			`{"name":"configmaps","namespaced":true,"kind":"ConfigMap","verbs":["get","list","watch"]}]}`)
	case strings.HasSuffix(path, "/endpointslices"):
		return json.RawMessage(`{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1","metadata":{"resourceVersion":"1"},` +
			`"items":[{"metadata":{"name":"a"},"addressType":"IPv4","endpoints":[{"addresses":["192.0.2.1"]}]}]}`)
	default:
		return nil
	}
}

func (s *Servers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	<-time.After(time.Duration(s.Latency.Load()))
	name, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if host, _, _ := net.SplitHostPort(r.Host); net.ParseIP(host) == nil {
		name = host
		path = strings.TrimPrefix(r.URL.Path, "/")
	}
	at, query := s.at(name), r.URL.Query()
	metadata := strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
	w.Header().Set("Content-Type", "application/json")
	if query.Get("watch") != "" && query.Get("sendInitialEvents") == "" {
		s.Watches.Add(1)
		defer s.Watches.Add(-1)
		at.watch(w, r, metadata)
		return
	}
	s.Requests.Add(1)
	answer := fixed(path)
	if answer == nil {
		answer, err = at.answer(r, path, text, metadata)
	}
	var failed apierrors.APIStatus
	if errors.As(err, &failed) {
		status := failed.Status()
		status.APIVersion = "v1"
		status.Kind = "Status"
		w.WriteHeader(int(status.Code))
		answer = status
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *Store) answer(r *http.Request, path string, text []byte, metadata bool) (any, error) {
	key := path
	if s.resource != "" {
		_, key, _ = strings.Cut(path, s.resource+"/")
	}
	if key != "" && r.Method == http.MethodGet {
		s.servers.Read(s.name)
	}
	s.servers.mu.Lock()
	defer s.servers.mu.Unlock()
	_, exists := s.objects[key]
	switch {
	case r.URL.Query().Get("sendInitialEvents") != "":
		return nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil)
	case r.Method == http.MethodPost:
		var object metav1.PartialObjectMetadata
		_ = json.Unmarshal(text, &object) // write fails, too.
		return s.write(key+"/"+object.Name, text, false)
	case r.Method == http.MethodPatch:
		return s.write(key, text, false)
	case key == "":
		return s.list(metadata), nil
	case !exists:
		return nil, apierrors.NewNotFound(schema.GroupResource{}, key)
	default:
		return s.object(key), nil
	}
}

func (s *Store) list(metadata bool) any {
	items := make([]any, 0, len(s.order))
	for _, key := range s.order {
		items = append(items, form(s.object(key), metadata))
	}
	kind, version := s.kind.Kind+"List", "v1"
	if metadata {
		kind = "PartialObjectMetadataList"
		version = "meta.k8s.io/v1"
	}
	return map[string]any{
		"kind": kind, "apiVersion": version, "items": items, "metadata": map[string]string{"resourceVersion": strconv.Itoa(s.version)},
	}
}

// form returns an object as an answer has it.
func form(object map[string]any, metadata bool) map[string]any {
	if metadata {
		return map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]}
	}
	return object
}

func (s *Store) watch(w http.ResponseWriter, r *http.Request, metadata bool) {
	changes := make(chan map[string]any, 1000)
	s.servers.mu.Lock()
	s.watchers[changes] = true
	s.servers.mu.Unlock()
	defer func() {
		s.servers.mu.Lock()
		delete(s.watchers, changes)
		s.servers.mu.Unlock()
	}()
	flush := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	for {
		_ = flush.Flush()
		select {
		case <-r.Context().Done():
			return
		case object := <-changes:
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "MODIFIED", "object": form(object, metadata)})
		}
	}
}
