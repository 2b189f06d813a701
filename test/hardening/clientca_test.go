package hardening

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/controlplane"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

const (
	handshakeFailures = "runtime_watcher_agent_tls_handshake_failures_total"
	reviews           = "runtime_watcher_agent_admission_reviews_total"
)

// guarded is an agent whose webhook demands the client certificate of the API server.
type guarded struct {
	*scene

	callers *testpki.CA
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()

	callers, err := testpki.NewCA("api-server-clients", testpki.Options{})
	if err != nil {
		t.Fatal(err)
	}

	file := filepath.Join(t.TempDir(), "callers.crt")
	if err := os.WriteFile(file, callers.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}

	return &guarded{newScene(t, map[string]string{"WEBHOOK_CLIENT_CA": file}), callers}
}

// admissionConfiguration writes what an API server needs to show its certificate to the webhook, as docs/security.md says, and returns
// the path for --admission-control-config-file.
func (g *guarded) admissionConfiguration() string {
	g.t.Helper()

	leaf, err := g.callers.Client("kube-apiserver", testpki.Options{})
	if err != nil {
		g.t.Fatal(err)
	}

	key, err := leaf.KeyPEM()
	if err != nil {
		g.t.Fatal(err)
	}

	return rig.AdmissionConfiguration(g.t, map[string]*clientcmdapi.AuthInfo{
		g.webhook(): {ClientCertificateData: leaf.CertPEM(), ClientKeyData: key},
	})
}

func configMaps() admission.Watch {
	return admission.Watch{
		Name:     types.NamespacedName{Namespace: rig.Namespace, Name: "configmaps"},
		Manager:  manager,
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		Labels:   map[string]string{"watched": "true"},
	}
}

func watchedConfigMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: metav1.NamespaceDefault, Labels: map[string]string{"watched": "true"},
	}}
}

// TestWebhookClientCA shows both ends of --webhook-client-ca with real API servers: one that shows its certificate is answered, and
// one that does not loses no write, but sees nobody.
func TestWebhookClientCA(t *testing.T) {
	t.Run("an API server with the certificate", func(t *testing.T) {
		t.Parallel()

		g := newGuarded(t)
		runtime := controlplane.StartT(t, controlplane.Options{
			APIServerArgs: map[string][]string{"admission-control-config-file": {g.admissionConfiguration()}},
		})
		rig.Watch(t, runtime, g.agent, g.pki.CA.PEM(), configMaps())

		if err := runtime.Client.Create(t.Context(), watchedConfigMap("seen")); err != nil {
			t.Fatal(err)
		}

		g.awaitEvent("seen")

		if n := g.agent.Metric(handshakeFailures); n != 0 {
			t.Errorf("%v handshakes failed, want none", n)
		}

		// A stranger beside it, who has the address but not the certificate.
		if took, err := g.review(g.apiServer(), "forged"); err == nil {
			t.Errorf("a stranger's review was answered, after %v", took)
		}

		rig.Eventually(t, patience, "the refusal is counted", func() bool { return g.agent.Metric(handshakeFailures) == 1 })
	})

	t.Run("an API server without", func(t *testing.T) {
		t.Parallel()

		g := newGuarded(t)
		runtime := controlplane.StartT(t, controlplane.Options{})

		configuration, err := admission.WebhookConfiguration("runtime-watcher", admission.Endpoint{
			URL: "https://" + g.webhook(), CABundle: g.pki.CA.PEM(),
		}, []admission.Watch{configMaps()}, admission.ConfigurationOptions{})
		if err != nil {
			t.Fatal(err)
		}

		if err := runtime.Client.Create(t.Context(), configuration); err != nil {
			t.Fatal(err)
		}

		// The configuration takes effect after a while, and every write goes through before and after.
		rig.Eventually(t, patience, "a handshake is refused, and counted", func() bool {
			object := watchedConfigMap("")
			object.GenerateName = "unseen-"

			if err := runtime.Client.Create(t.Context(), object); err != nil {
				t.Fatalf("a write failed: %v", err)
			}

			return g.agent.Metric(handshakeFailures) > 0
		})

		if n := g.agent.Metric(reviews); n != 0 {
			t.Errorf("%v reviews were answered, want none", n)
		}

		client, err := kubernetes.NewForConfig(runtime.Config)
		if err != nil {
			t.Fatal(err)
		}

		text, err := client.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}

		if n := rig.Sum(text, "apiserver_admission_webhook_fail_open_count"); n == 0 {
			t.Error("the API server does not count what it let pass unseen")
		}
	})
}
