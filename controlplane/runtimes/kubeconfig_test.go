package runtimes_test

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
)

const kubeconfig = `
apiVersion: v1
kind: Config
current-context: runtime
contexts: [{name: runtime, context: {cluster: runtime, user: operator}}]
clusters: [{name: runtime, cluster: {server: "https://192.0.2.1"}}]
users: [{name: operator, user: {token: secret}}]
`

// secrets has one Secret, or none, or an error.
type secrets struct {
	client.Reader

	version, text string
	uid           types.UID
	err           error
}

func (s *secrets) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if s.err != nil {
		return s.err
	}

	secret, _ := object.(*corev1.Secret)
	secret.Namespace = key.Namespace
	secret.Name = key.Name
	secret.UID = s.uid
	secret.ResourceVersion = s.version
	secret.Data = map[string][]byte{"config": []byte(s.text)}

	return nil
}

// mustConnect connects to the runtime of an object.
func mustConnect(t *testing.T, connect func(context.Context, client.Object) (client.Client, error), name string) client.Client {
	t.Helper()

	object := &corev1.ConfigMap{}
	object.SetName(name)
	c, err := connect(t.Context(), object)
	if err != nil {
		t.Fatal(err)
	}

	return c
}

func TestKubeconfigsKeepAClientUntilItsSecretChanges(t *testing.T) {
	stored := &secrets{version: "1", text: kubeconfig}
	kubeconfigs := runtimes.NewKubeconfigs(stored, "config", client.ObjectKeyFromObject, runtimes.KubeconfigOptions{})
	object := &corev1.ConfigMap{}
	connect := func() client.Client { return mustConnect(t, kubeconfigs, "") }
	first := connect()
	if connect() != first {
		t.Error("each reconcile makes a client")
	}

	stored.version = "2" // A label has changed.
	if connect() != first {
		t.Error("a touched Secret makes a client")
	}

	stored.version = "3"
	stored.text = strings.Replace(kubeconfig, "token: secret", "token: renewed", 1)
	second := connect()
	if second == first {
		t.Error("a client of a kubeconfig that was replaced")
	}

	stored.err = apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "runtime")
	if c, err := kubeconfigs(t.Context(), object); !errors.Is(err, runtimes.ErrGone) || c != nil {
		t.Errorf("without Secret: got %v, %v", c, err)
	}

	stored.err = errors.New("the API server is away")
	if _, err := kubeconfigs(t.Context(), object); err == nil || errors.Is(err, runtimes.ErrGone) {
		t.Errorf("the API server is away: got %v", err)
	}

	stored.err = nil
	stored.version = "4"
	stored.text = kubeconfig
	if connect() == second {
		t.Error("a client of a Secret that was gone")
	}
}

// The metadata of a Secret, as in a cache, make a read of each reconcile superfluous.
func TestKubeconfigsKnowTheVersionOfASecret(t *testing.T) {
	stored := &secrets{version: "1", uid: "a", text: kubeconfig}
	kubeconfigs := runtimes.NewKubeconfigs(stored, "config", client.ObjectKeyFromObject, runtimes.KubeconfigOptions{})
	connect := func(uid types.UID, version string) error {
		_, err := kubeconfigs(t.Context(), &metav1.PartialObjectMetadata{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: uid, ResourceVersion: version},
		})
		return err
	}
	if err := connect("a", "1"); err != nil {
		t.Fatal(err)
	}

	stored.err = errors.New("the API server is away")
	if err := connect("a", "1"); err != nil {
		t.Errorf("%v, want no read", err)
	}

	for _, other := range [][2]string{{"a", "2"}, {"b", "1"}, {"", "1"}} {
		if err := connect(types.UID(other[0]), other[1]); !errors.Is(err, stored.err) {
			t.Errorf("UID %q, version %s: error %v, want a read", other[0], other[1], err)
		}
	}
}

// connectWith connects with the kubeconfig of a Secret.
func connectWith(t *testing.T, text string, opts runtimes.KubeconfigOptions) (client.Client, error) {
	t.Helper()

	connect := runtimes.NewKubeconfigs(&secrets{version: "1", text: text}, "config", client.ObjectKeyFromObject, opts)
	return connect(t.Context(), &corev1.ConfigMap{})
}

// A writer of the Secret of one runtime must not act as the operator.
func TestKubeconfigsAreSelfContained(t *testing.T) {
	const server, token = `"https://192.0.2.1"`, "token: secret"
	const program = "exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, interactiveMode: Never}"
	const insecure = `"http://192.0.2.1", insecure-skip-tls-verify: true, proxy-url: "http://192.0.2.2"`
	var none runtimes.KubeconfigOptions

	for name, test := range map[string]struct {
		old, replaced string
		opts          runtimes.KubeconfigOptions
		want          string // of the error, none if it is empty
	}{
		"a program":           {token, program, none, "program"},
		"a provider":          {token, "auth-provider: {name: oidc}", none, "program"},
		"a program, allowed":  {token, program, runtimes.KubeconfigOptions{AllowExternal: true}, ""},
		"a file with a token": {token, "tokenFile: /etc/passwd", none, "file"},
		"a file with a key":   {token, "client-key: /etc/key, client-certificate: /etc/certificate", none, "file"},
		"a file with a CA":    {server, server + ", certificate-authority: /etc/ca", none, "file"},
		"no verification":     {server, server + ", insecure-skip-tls-verify: true", none, "insecure-skip-tls-verify"},
		"plain text":          {server, `"http://192.0.2.1"`, none, "https://"},
		"no scheme":           {server, `"192.0.2.1:6443"`, none, "https://"},
		"a proxy":             {server, server + `, proxy-url: "http://192.0.2.2"`, none, "proxy-url"},
		"in a user not used":  {"users: [", "users: [{name: other, user: {tokenFile: /etc/passwd}}, ", none, "file"},
		"nothing":             {kubeconfig, "", none, "is empty"},
		"no current context":  {"current-context: runtime", "", none, `want a current-context, have none; the contexts are "runtime"`},
		"an unknown cluster":  {"{cluster: runtime,", "{cluster: other,", none, `refers to cluster "other"; the clusters are "runtime"`},
		"an unknown user":     {"user: operator}", "user: other}", none, `refers to user "other"; the users are "operator"`},
		"no YAML":             {kubeconfig, "{", none, "Secret"},
		"another context":     {"current-context: runtime", "current-context: other", none, "other"},
		"plain text and a proxy, with others allowed": {
			server, insecure, runtimes.KubeconfigOptions{AllowProxy: true, AllowExternal: true}, "insecure-skip-tls-verify",
		},
		"a proxy, with others allowed": {
			server, insecure, runtimes.KubeconfigOptions{AllowInsecure: true, AllowExternal: true}, "proxy-url",
		},
		"plain text and a proxy, allowed": {
			server, insecure, runtimes.KubeconfigOptions{AllowInsecure: true, AllowProxy: true}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(kubeconfig, test.old, test.replaced, 1)
			if text == kubeconfig {
				t.Fatal("the test changes nothing")
			}

			_, err := connectWith(t, text, test.opts)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

// Secrets of today's fleet have the name of their Kyma in a label.
func TestKubeconfigsAreFoundByLabel(t *testing.T) {
	const label = "operator.kyma-project.io/kyma-name"
	secret := func(name, namespace, kyma string) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{label: kyma}},
			Data:       map[string][]byte{"config": []byte(kubeconfig)},
		}
	}

	stored := fake.NewClientBuilder().WithObjects(
		secret("kubeconfig-1", "kcp", "kyma-1"), secret("kubeconfig-1", "other", "kyma-1"),
		secret("kubeconfig-2", "kcp", "kyma-2"), secret("kubeconfig-2-copy", "kcp", "kyma-2"),
	).Build()

	kubeconfigs := runtimes.NewKubeconfigsByLabel(stored, "config",
		runtimes.KubeconfigSecrets{Namespace: "kcp", Label: label}, runtimes.KubeconfigOptions{})
	for name, test := range map[string]struct {
		gone bool
		want string
	}{
		"kcp/kyma-1": {},
		"/kyma-1":    {},
		"kcp/kyma-2": {want: "kubeconfig-2-copy"},
		"kcp/kyma-3": {gone: true, want: "kyma-3"},
		// A namesake must not get into the runtime.
		"tenant/kyma-1": {want: "have an object of tenant"},
	} {
		object := &corev1.ConfigMap{}
		object.Namespace, object.Name, _ = strings.Cut(name, "/")
		c, err := kubeconfigs(t.Context(), object)
		if (err == nil) != (test.want == "") || (c == nil) != (err != nil) ||
			errors.Is(err, runtimes.ErrGone) != test.gone || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: got %v, %v, want an error with %q", name, c, err, test.want)
		}
	}
}

// An operator reads Deployments of a runtime with the client of the installation.
func TestKubeconfigsMakeTypedClients(t *testing.T) {
	var agent string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		agent = r.UserAgent()
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"node"}}`)
	}))
	defer server.Close()
	c := connectTo(t, server, runtimes.KubeconfigOptions{
		Scheme: scheme.Scheme, Configure: func(config *rest.Config) { config.UserAgent = "my-operator" },
		Mapper: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			mapper := meta.NewDefaultRESTMapper(nil)
			mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
			return mapper, nil
		},
	})

	node := &corev1.Node{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "node"}, node); err != nil || node.Name != "node" ||
		agent != "my-operator" {
		t.Errorf("got %v, %v, as %q", node, err, agent)
	}
}

// Ten thousand runtimes are visited one after the other.
func TestKubeconfigsKeepAFewClients(t *testing.T) {
	kubeconfigs := runtimes.NewKubeconfigs(&secrets{version: "1", text: kubeconfig}, "config",
		client.ObjectKeyFromObject, runtimes.KubeconfigOptions{Clients: 2})
	connect := func(name string) client.Client { return mustConnect(t, kubeconfigs, name) }
	first := connect("first")
	second := connect("second")

	if connect("first") != first || connect("third") == nil {
		t.Error("a client is made again")
	}
	if connect("first") != first || connect("second") == second {
		t.Error("the client that was used last is dropped")
	}
}

// connectTo connects to an API server that is not one.
func connectTo(t *testing.T, server *httptest.Server, opts runtimes.KubeconfigOptions) client.Client {
	t.Helper()

	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	text := strings.Replace(kubeconfig, `"https://192.0.2.1"`, `"`+server.URL+`", certificate-authority-data: `+
		base64.StdEncoding.EncodeToString(ca), 1)
	c, err := connectWith(t, text, opts)
	if err != nil {
		t.Fatal(err)
	}

	return c
}

func getDeployment(ctx context.Context, c client.Client) error {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("apps/v1")
	object.SetKind("Deployment")

	return c.Get(ctx, client.ObjectKey{Namespace: "default", Name: "agent"}, object)
}

// The address of a kubeconfig was validated, and that of a redirect was not. Plain text and
// addresses inside the control plane are among them.
func TestKubeconfigsFollowNoRedirects(t *testing.T) {
	var asked atomic.Int32
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer inside.Close()
	server := httptest.NewTLSServer(http.RedirectHandler(inside.URL, http.StatusTemporaryRedirect))
	defer server.Close()

	if err := getDeployment(t.Context(), connectTo(t, server, runtimes.KubeconfigOptions{})); err == nil {
		t.Error("a redirect is an answer")
	}
	if asked.Load() != 0 {
		t.Error("a runtime made the operator send a request to an address of its choice")
	}
}

func TestKubeconfigsBoundAnswers(t *testing.T) {
	var sent atomic.Int64
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		const most = 64 << 20
		for part := strings.Repeat(" ", 1<<20); sent.Load() < most; sent.Add(int64(len(part))) {
			if _, err := io.WriteString(w, part); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	err := getDeployment(t.Context(), connectTo(t, server, runtimes.KubeconfigOptions{}))
	if err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("got %v, want an error about the size", err)
	}
}

// The host of an API server may belong to a proxy, with a page of its own for a cluster that sleeps.
func TestAPageOfAProxyIsNoAbsence(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	installer, err := installation.New(installation.Parts{Image: "image", ControlPlane: "kcp.example.com:443"}, installation.Options{})
	if err != nil {
		t.Fatal(err)
	}

	status, err := installer.Uninstall(t.Context(), installation.Runtime{
		ID: "kyma-1", Client: connectTo(t, server, runtimes.KubeconfigOptions{}),
	})
	if err == nil || status.State == installation.Removed {
		t.Errorf("got %s, %v, want an error", status.State, err)
	}
}

// A client of controller-runtime keeps each warning to log it once, by default.
func TestKubeconfigsIgnoreWarnings(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	var config *rest.Config
	connectTo(t, server, runtimes.KubeconfigOptions{Configure: func(c *rest.Config) { config = c }})

	if config.WarningHandlerWithContext != (rest.NoWarnings{}) {
		t.Errorf("warnings of a runtime go to %T", config.WarningHandlerWithContext)
	}
}
