package gateway_test

import (
	"path/filepath"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// TestAPIServerRotatesItsCertificate has a real API server show a client certificate to a webhook
// that demands it. The API server takes a new certificate without a restart when its configuration
// names files.
func TestAPIServerRotatesItsCertificate(t *testing.T) {
	lab.SkipShort(t)
	t.Parallel()
	// trusted is the bundle of the agent, shown the secret of the API server.
	trusted := filepath.Join(t.TempDir(), "callers.crt")
	old, next := lab.NewPKI(t).CA, lab.NewPKI(t).CA
	shown := newSecret(t, true, func(ca *testpki.CA, opts testpki.Options) (*testpki.Leaf, error) {
		return ca.Client("kube-apiserver", opts)
	})
	shown.write(old, old)
	rename(t, trusted, old.PEM)
	_, certificate, key := shown.volume.Paths()
	plane := apiserver.StartT(t,
		apiserver.Options{APIServerArgs: map[string][]string{"admission-control-config-file": {
			lab.AdmissionConfiguration(t,
				map[string]*clientcmdapi.AuthInfo{"*": {ClientCertificate: certificate, ClientKey: key}}),
		}}})
	servers := lab.NewPKI(t).CA
	agent := startAgent(t, "runtime-1", true, lab.Address(lab.FreePort(t)),
		map[string]string{"WEBHOOK_CLIENT_CA": trusted}, servers, servers)
	lab.Watch(t, plane, agent.Agent, servers.PEM, watch.Watch{
		Name: types.NamespacedName{Namespace: "default", Name: "configmaps"}, Manager: component,
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
	})
	for _, bundle := range [][]*testpki.CA{{old, next}, {next}} {
		reloads := agent.reloads()
		rename(t, trusted, testpki.Bundle(bundle...))
		eventually(t, "the agent trusts the new bundle", func() bool { return agent.reloads() > reloads })
		shown.write(next, next)
	}
	reconnect(t, plane)
	eventually(t, "a review over a connection with the new certificate", func() bool {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, GenerateName: "shown-",
		}}
		reviewed := agent.reviewed()
		if err := plane.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		return agent.reviewed() > reviewed
	})
}

func (a *runtimeAgent) reloads() float64 {
	return a.Metric("runtime_watcher_agent_certificate_reloads_total", `use="webhook_ca"`)
}

// reconnect changes the text of the bundle in the webhook configuration. An API server has a pool
// of connections for each.
func reconnect(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := plane.Client.Get(t.Context(), client.ObjectKey{Name: "runtime-watcher"}, configuration); err != nil {
		t.Fatal(err)
	}
	config := &configuration.Webhooks[0].ClientConfig
	config.CABundle = append(config.CABundle, '\n')
	if err := plane.Client.Update(t.Context(), configuration); err != nil {
		t.Fatal(err)
	}
}
