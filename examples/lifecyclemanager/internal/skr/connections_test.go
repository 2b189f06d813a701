package skr_test

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
	"weak"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const kubeconfig = `
current-context: x
contexts: [{name: x, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://192.0.2.1"}}]
users: [{name: u, user: {token: t}}]
`

// secrets has one Secret in each place, or none if version is empty.
type secrets struct {
	client.Reader

	version, kubeconfig string
}

// Get implements [client.Reader].
func (s *secrets) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if s.version == "" {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, key.Name)
	}
	secret, _ := object.(*corev1.Secret)
	secret.Namespace = key.Namespace
	secret.Name = key.Name
	secret.ResourceVersion = s.version
	secret.Data = map[string][]byte{skr.KubeconfigKey: []byte(cmp.Or(s.kubeconfig, kubeconfig))}
	return nil
}

func TestConnections(t *testing.T) {
	stored := &secrets{}
	connections := skr.NewConnections(stored, runtime.NewScheme())
	get := func(name string) *skr.Runtime {
		t.Helper()
		there, err := connections.Get(t.Context(), client.ObjectKey{Namespace: "kcp-system", Name: name})
		if errors.Is(err, runtimes.ErrGone) != (stored.version == "") {
			t.Fatalf("Secret of version %q: error %v", stored.version, err)
		}
		return there
	}
	get("runtime-1")
	stored.version = "1"
	first := get("runtime-1")
	if get("runtime-1") != first || get("runtime-2") == first {
		t.Error("want one connection for each runtime")
	}
	stored.version = "2"
	if get("runtime-1") != first {
		t.Error("a Secret that was touched costs the connection")
	}
	stored.version = "3"
	stored.kubeconfig = strings.ReplaceAll(kubeconfig, "192.0.2.1", "192.0.2.2")
	second := get("runtime-1")
	if second == first || second.Client == first.Client {
		t.Error("the connection is still that of the former kubeconfig")
	}
	stored.version = ""
	get("runtime-1")
	stored.version = "3"
	if get("runtime-1") == second {
		t.Error("a runtime that was gone is still prepared")
	}
}

// TestClientsAreBounded connects to more runtimes than are kept: the one that was not used for the
// longest time is forgotten, and nothing else holds runtimes.
func TestClientsAreBounded(t *testing.T) {
	const most = 512
	connections := skr.NewConnections(&secrets{version: "1"}, runtime.NewScheme())
	get := func(i int) *skr.Runtime {
		there, err := connections.Get(t.Context(), client.ObjectKey{Name: fmt.Sprint("runtime-", i)})
		if err != nil {
			t.Fatal(err)
		}
		return there
	}
	first := get(0).Client
	second := get(1).Client
	var made []weak.Pointer[skr.Runtime]
	for i := 2; i < most; i++ {
		made = append(made, weak.Make(get(i)))
	}
	if get(0).Client != first {
		t.Errorf("the client of one of %d runtimes was forgotten", most)
	}
	made = append(made, weak.Make(get(most)))
	if get(0).Client != first || get(1).Client == second {
		t.Errorf("want the client that is not used to be forgotten for the %dth", most+1)
	}
	for i := range most {
		made = append(made, weak.Make(get(most+i)))
	}
	goruntime.GC()
	made = slices.DeleteFunc(made, func(p weak.Pointer[skr.Runtime]) bool { return p.Value() == nil })
	if len(made) > most {
		t.Errorf("%d runtimes are in memory, want %d or fewer", len(made), most)
	}
	goruntime.KeepAlive(connections)
}

// fakeServer is an API server with a number of definitions, ten in each group. Aggregated, it lists
// all kinds in one answer, as API servers do since Kubernetes 1.27.
type fakeServer struct {
	*httptest.Server

	definitions int
	aggregated  bool

	mu    sync.Mutex
	paths []string // of all requests
}

func newFakeServer(t *testing.T) *fakeServer {
	t.Helper()
	s := &fakeServer{}
	s.Server = httptest.NewTLSServer(s)
	t.Cleanup(s.Close)
	return s
}

// runtime connects to the server.
func (s *fakeServer) runtime(t *testing.T) *skr.Runtime {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	stored := &secrets{version: "1", kubeconfig: fmt.Sprintf(`{"current-context": "x", "users": [{"name": "u", "user": {"token": "t"}}],
		"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
		"clusters": [{"name": "c", "cluster": {"server": %q, "certificate-authority-data": %q}}]}`,
		s.URL, base64.StdEncoding.EncodeToString(ca))}
	scheme := runtime.NewScheme()
	lab.NoError(t, corev1.AddToScheme(scheme))
	return lab.Must(skr.NewConnections(stored, scheme).Get(t.Context(), client.ObjectKey{Name: "runtime-1"}))
}

func (s *fakeServer) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	s.mu.Lock()
	s.paths = append(s.paths, request.URL.Path)
	s.mu.Unlock()
	const all = "as=APIGroupDiscoveryList"
	kind := "application/json"
	if s.aggregated && strings.Contains(request.Header.Get("Accept"), "v=v2;"+all) {
		kind += ";g=apidiscovery.k8s.io;v=v2;" + all
	}
	w.Header().Set("Content-Type", kind)
	_ = json.NewEncoder(w).Encode(s.answer(request.URL.Path, strings.Contains(kind, all)))
}

func (s *fakeServer) answer(path string, all bool) any {
	switch {
	case path == "/api/v1/namespaces/kube-system":
		return corev1.Namespace{
			TypeMeta: metav1.TypeMeta{Kind: "Namespace", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{UID: "cluster"},
		}
	case path == "/api" && !all:
		return metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case path == "/apis" && all:
		return s.allGroups()
	case path == "/apis":
		return s.groups()
	case path == "/apis/g0.example.com/v1":
		return metav1.APIResourceList{GroupVersion: "g0.example.com/v1", APIResources: []metav1.APIResource{
			{Name: "kind0s", Kind: "Kind0", Namespaced: true},
		}}
	default:
		return apidiscoveryv2.APIGroupDiscoveryList{}
	}
}

func (s *fakeServer) groups() any {
	list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for i := range s.definitions / 10 {
		version := metav1.GroupVersionForDiscovery{GroupVersion: fmt.Sprintf("g%d.example.com/v1", i), Version: "v1"}
		list.Groups = append(list.Groups, metav1.APIGroup{
			Name: fmt.Sprintf("g%d.example.com", i), Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
		})
	}
	return list
}

func (s *fakeServer) allGroups() any {
	list := apidiscoveryv2.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"},
	}
	for i := range s.definitions {
		if i%10 == 0 {
			list.Items = append(list.Items, apidiscoveryv2.APIGroupDiscovery{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("g%d.example.com", i/10)},
				Versions:   []apidiscoveryv2.APIVersionDiscovery{{Version: "v1", Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}},
			})
		}
		group := &list.Items[len(list.Items)-1]
		kind := &metav1.GroupVersionKind{Group: group.Name, Version: "v1", Kind: fmt.Sprintf("Kind%d", i)}
		group.Versions[0].Resources = append(group.Versions[0].Resources, apidiscoveryv2.APIResourceDiscovery{
			Resource: fmt.Sprintf("kind%ds", i), SingularResource: fmt.Sprintf("kind%d", i), ResponseKind: kind,
			Scope: apidiscoveryv2.ScopeNamespace, ShortNames: []string{fmt.Sprintf("k%d", i)}, Categories: []string{"all"},
			Verbs: []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"},
			Subresources: []apidiscoveryv2.APISubresourceDiscovery{
				{Subresource: "status", ResponseKind: kind, Verbs: []string{"get", "patch", "update"}},
			},
		})
	}
	return list
}

// TestDiscovery learns the kinds of a runtime with 1,000 definitions. Where there are too many, the
// error says so.
func TestDiscovery(t *testing.T) {
	for _, test := range []struct {
		aggregated  bool
		definitions int
		fits        bool
	}{
		{true, 10, true},
		{true, 1_000, true},
		{true, 1_500, true},
		{true, 2_000, false},
		{false, 10, true},
		{false, 1_000, true},
		{false, 500_000, false},
	} {
		t.Run(fmt.Sprintf("aggregated %t, %d definitions", test.aggregated, test.definitions), func(t *testing.T) {
			s := newFakeServer(t)
			s.aggregated = test.aggregated
			s.definitions = test.definitions
			_, err := s.runtime(t).RESTMapper().RESTMapping(schema.GroupKind{Group: "g0.example.com", Kind: "Kind0"}, "v1")
			if (err == nil) != test.fits {
				t.Errorf("error %v, want one: %t", err, !test.fits)
			}
			if err != nil && (!strings.Contains(err.Error(), "more kinds than") || !errors.Is(err, remote.ErrLargeAnswer)) {
				t.Errorf("error %v, want the reason", err)
			}
		})
	}
}

// TestClusterNeedsNoMapper identifies a cluster by one request, which ends with its context. The
// requests of a mapper do not.
func TestClusterNeedsNoMapper(t *testing.T) {
	s := newFakeServer(t)
	cluster, err := s.runtime(t).Cluster(t.Context())
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || cluster != "cluster" || len(s.paths) != 1 {
		t.Errorf("cluster %q, error %v, requests %q: want one for the Namespace", cluster, err, s.paths)
	}
}

func TestShort(t *testing.T) {
	cause := errors.New(strings.Repeat("é", 10_000))
	step := func(context.Context, *corev1.Secret) (ctrl.Result, error) { return ctrl.Result{}, cause }
	report := func(v1beta2.State, error) error { return nil }
	_, err := skr.Reconcile(t.Context(), &corev1.Secret{}, step, step, report)
	if !errors.Is(err, cause) || len(err.Error()) > 1100 || !utf8.ValidString(err.Error()) {
		t.Errorf("error of %d bytes, want it cut and wrapped", len(err.Error()))
	}
	if skr.Short("text") != "text" {
		t.Error("a short text is changed")
	}
}
