package multicluster_test

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
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// written is the key of a ConfigMap with the time of its write, in nanoseconds.
const written = "written"

// apiServers are stand-ins behind one address: a control plane with Secrets, and clusters with
// ConfigMaps. The first part of a path names one of them.
type apiServers struct {
	*httptest.Server

	stores map[string]*store
	// requests counts all but watches. watches and connections are those that are open.
	requests, watches, connections atomic.Int64
}

// store has the objects of one API server.
type store struct {
	kind, resource string

	mu       sync.Mutex
	version  int
	objects  map[string]client.Object
	order    []string
	watchers map[chan client.Object]bool
}

const controlPlane = "control-plane"

func clusterName(i int) string { return fmt.Sprint("cluster-", i) }

func startServers(t *testing.T, ca *testpki.CA, clusters int) *apiServers {
	t.Helper()
	s := &apiServers{stores: map[string]*store{controlPlane: newStore("Secret", "secrets")}}
	s.Server = httptest.NewUnstartedServer(s)
	s.EnableHTTP2 = true
	leaf := lab.Must(ca.Server("kubernetes", testpki.Options{
		DNSNames: []string{"*.example.com"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{leaf.TLS}, MinVersion: tls.VersionTLS13}
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state { //nolint:exhaustive // The others are in between.
		case http.StateNew:
			s.connections.Add(1)
		case http.StateClosed, http.StateHijacked:
			s.connections.Add(-1)
		}
	}
	s.StartTLS()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	for i := range clusters {
		s.stores[clusterName(i)] = newStore("ConfigMap", "configmaps")
		for n := range *objects {
			s.stores[clusterName(i)].put(configMap(n, 0))
		}
		s.stores[controlPlane].put(s.secret(clusterName(i), ca))
	}
	return s
}

// secret has the kubeconfig of a cluster. The name of its server gives it connections of its own.
func (s *apiServers) secret(name string, ca *testpki.CA) *corev1.Secret {
	kubeconfig := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"contexts":[{"name":"c","context":{"cluster":"c","user":"c"}}],"users":[{"name":"c","user":{"token":"t"}}],
		"clusters":[{"name":"c","cluster":{"server":"%s/%s","tls-server-name":"%s.example.com","certificate-authority-data":%s}}]}`,
		s.URL, name, name, lab.Must(json.Marshal(ca.PEM)))
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(name),
			Labels:      map[string]string{"sigs.k8s.io/multicluster-runtime-kubeconfig": "true"},
			Annotations: map[string]string{controllerruntime.DomainAnnotation: name + ".example.com"},
		},
		Data: map[string][]byte{"kubeconfig": []byte(kubeconfig)},
	}
}

func configMap(n int, at int64) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: objectName(n), UID: types.UID(objectName(n))},
		Data:       map[string]string{written: strconv.FormatInt(at, 10), "text": strings.Repeat("x", *size)},
	}
}

func objectName(n int) string { return fmt.Sprint("object-", n) }

func newStore(kind, resource string) *store {
	return &store{
		kind: kind, resource: resource, objects: make(map[string]client.Object), watchers: make(map[chan client.Object]bool),
	}
}

// put stores an object, sends it to the watchers, and returns the version before.
func (s *store) put(object client.Object) (base int) {
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
func (s *apiServers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
		s.watches.Add(1)
		defer s.watches.Add(-1)
		at.watch(w, r, metadata)
		return
	case object != "":
		at.get(w, object)
	default:
		at.list(w, metadata)
	}
	s.requests.Add(1)
}

// form returns an object as an answer has it.
func (s *store) form(object client.Object, metadata bool) any {
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
	own.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(s.kind))
	return own
}

func (s *store) get(w http.ResponseWriter, name string) {
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

func (s *store) list(w http.ResponseWriter, metadata bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := make([]any, 0, len(s.order))
	for _, name := range s.order {
		items = append(items, s.form(s.objects[name], metadata))
	}
	kind, version := s.kind+"List", "v1"
	if metadata {
		kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": kind, "apiVersion": version, "items": items,
		"metadata": map[string]string{"resourceVersion": strconv.Itoa(s.version)},
	})
}

func (s *store) watch(w http.ResponseWriter, r *http.Request, metadata bool) {
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

// write changes an object of a cluster, and returns the version before.
func (s *apiServers) write(cluster, n int) (base int) {
	return s.stores[clusterName(cluster)].put(configMap(n, time.Now().UnixNano()))
}
