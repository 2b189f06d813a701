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
	"testing"
	"unicode/utf8"
	"weak"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
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
	secret.Namespace, secret.Name, secret.ResourceVersion = key.Namespace, key.Name, s.version
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
	first, second := get(0).Client, get(1).Client
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

// TestDiscoveryIsBounded lets a runtime claim many API groups.
func TestDiscoveryIsBounded(t *testing.T) {
	groups := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for i := range groups {
			version := metav1.GroupVersionForDiscovery{GroupVersion: fmt.Sprintf("g%d.example.com/v1", i), Version: "v1"}
			list.Groups = append(list.Groups, metav1.APIGroup{
				Name: fmt.Sprintf("g%d.example.com", i), Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
			})
		}
		var answer any = list
		switch request.URL.Path {
		case "/api":
			answer = metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
		case "/apis/g1.example.com/v1":
			answer = metav1.APIResourceList{GroupVersion: "g1.example.com/v1", APIResources: []metav1.APIResource{
				{Name: "kedas", Kind: "Keda", Namespaced: true},
			}}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for groups = range map[int]string{10: "some", 10_000: "many"} {
		stored := &secrets{version: "1", kubeconfig: fmt.Sprintf(`{"current-context": "x", "users": [{"name": "u", "user": {"token": "t"}}],
			"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
			"clusters": [{"name": "c", "cluster": {"server": %q, "certificate-authority-data": %q}}]}`,
			server.URL, base64.StdEncoding.EncodeToString(ca))}
		there, err := skr.NewConnections(stored, runtime.NewScheme()).Get(t.Context(), client.ObjectKey{Name: "runtime-1"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = there.RESTMapper().RESTMapping(schema.GroupKind{Group: "g1.example.com", Kind: "Keda"})
		if (err == nil) != (groups == 10) {
			t.Errorf("%d groups: error %v", groups, err)
		}
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
