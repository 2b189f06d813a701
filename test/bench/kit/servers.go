package kit

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// Servers are stand-ins for API servers behind one address. The first part of a path names one of
// them.
type Servers struct {
	*httptest.Server

	// Requests counts all but watches. Watches and Connections are those that are open.
	Requests, Watches, Connections atomic.Int64
	// Read is called before an object of a server is read. Default: nothing.
	Read func(server string)

	stores map[string]*Store
}

// Store has the objects of one API server. All are of one kind.
type Store struct {
	kind     schema.GroupVersionKind
	resource string

	mu       sync.Mutex
	version  int
	objects  map[string]client.Object
	order    []string
	watchers map[chan client.Object]bool
}

// StartServers starts servers with a certificate of ca for this machine and *.example.com.
func StartServers(t testing.TB, ca *testpki.CA) *Servers {
	t.Helper()
	s := &Servers{stores: map[string]*Store{}, Read: func(string) {}}
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

// Add adds a server with objects of a kind, before the first request.
func (s *Servers) Add(name string, kind schema.GroupVersionKind, resource string) *Store {
	s.stores[name] = &Store{
		kind: kind, resource: resource, objects: make(map[string]client.Object), watchers: make(map[chan client.Object]bool),
	}
	return s.stores[name]
}

// Put stores an object, sends it to the watchers, and returns the version before.
func (s *Store) Put(object client.Object) (base int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if before, known := s.objects[object.GetName()]; known {
		base = lab.Must(strconv.Atoi(before.GetResourceVersion()))
	} else {
		s.order = append(s.order, object.GetName())
	}
	s.version++
	object.SetResourceVersion(strconv.Itoa(s.version))
	s.objects[object.GetName()] = object
	for watcher := range s.watchers {
		watcher <- object
	}
	return base
}

// ServeHTTP answers discovery, gets, lists and watches.
func (s *Servers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	at := s.stores[name]
	if at == nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	metadata := strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
	switch _, object, _ := strings.Cut(path, at.resource+"/"); {
	case path == "api":
		fmt.Fprint(w, `{"kind":"APIVersions","versions":["v1"]}`)
	case path == "apis":
		fmt.Fprint(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`)
	case path == "api/v1":
		fmt.Fprint(w, `{"kind":"APIResourceList","groupVersion":"v1","resources":[`+
			`{"name":"secrets","namespaced":true,"kind":"Secret","verbs":["get","list","watch"]},`+
			`{"name":"configmaps","namespaced":true,"kind":"ConfigMap","verbs":["get","list","watch"]}]}`)
	case r.URL.Query().Get("sendInitialEvents") != "":
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
	case r.URL.Query().Get("watch") != "":
		s.Watches.Add(1)
		defer s.Watches.Add(-1)
		at.watch(w, r, metadata)
		return
	case object != "":
		s.Read(name)
		at.get(w, object)
	default:
		at.list(w, metadata)
	}
	s.Requests.Add(1)
}

// form returns an object as an answer has it.
func (s *Store) form(object client.Object, metadata bool) any {
	if metadata {
		return &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(),
				ResourceVersion: object.GetResourceVersion(), Labels: object.GetLabels(), Annotations: object.GetAnnotations(),
			},
		}
	}
	own := object.DeepCopyObject()
	own.GetObjectKind().SetGroupVersionKind(s.kind)
	return own
}

func (s *Store) get(w http.ResponseWriter, name string) {
	s.mu.Lock()
	object := s.objects[name]
	s.mu.Unlock()
	if object == nil {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		return
	}
	_ = json.NewEncoder(w).Encode(s.form(object, false))
}

func (s *Store) list(w http.ResponseWriter, metadata bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := make([]any, 0, len(s.order))
	for _, name := range s.order {
		items = append(items, s.form(s.objects[name], metadata))
	}
	kind, version := s.kind.Kind+"List", "v1"
	if metadata {
		kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": kind, "apiVersion": version, "items": items,
		"metadata": map[string]string{"resourceVersion": strconv.Itoa(s.version)},
	})
}

func (s *Store) watch(w http.ResponseWriter, r *http.Request, metadata bool) {
	changes := make(chan client.Object, 1000)
	s.mu.Lock()
	s.watchers[changes] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, changes)
		s.mu.Unlock()
	}()
	flush := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	for {
		_ = flush.Flush()
		select {
		case <-r.Context().Done():
			return
		case object := <-changes:
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "MODIFIED", "object": s.form(object, metadata)})
		}
	}
}
