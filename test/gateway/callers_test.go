package gateway_test

import (
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
	trusted := testpki.NewVolume(t.TempDir())
	old := lab.NewPKI(t).CA
	next := lab.NewPKI(t).CA
	shown := testpki.NewVolume(t.TempDir())
	show := func(ca *testpki.CA) {
		lab.NoError(t, shown.Write(testpki.Files(lab.Must(ca.Client("kube-apiserver", testpki.Options{})), ca)))
	}
	show(old)
	trust := func(bundle ...*testpki.CA) {
		lab.NoError(t, trusted.Write(map[string][]byte{"callers.crt": testpki.Bundle(bundle...)}))
	}
	trust(old)
	_, certificate, key := shown.Paths()
	plane := apiserver.StartT(t,
		apiserver.Options{APIServerArgs: map[string][]string{"admission-control-config-file": {
			lab.AdmissionConfiguration(t,
				map[string]*clientcmdapi.AuthInfo{"*": {ClientCertificate: certificate, ClientKey: key}}),
		}}})
	servers := lab.NewPKI(t)
	agent := lab.StartAgent(t, servers.RuntimeVolume("runtime-1", "runtime-1.example.com"), lab.Address(lab.FreePort(t)),
		lab.AgentOptions{Env: map[string]string{"WEBHOOK_CLIENT_CA": trusted.Path("callers.crt")}})
	reloads := func() float64 {
		return agent.Metric("runtime_watcher_agent_certificate_reloads_total", `use="webhook_ca"`)
	}
	reviewed := func() float64 {
		return agent.Metric("runtime_watcher_agent_admission_reviews_total", `decision="accepted"`)
	}
	lab.Watch(t, plane, agent, servers.CA.PEM, watch.Watch{
		Name: types.NamespacedName{Namespace: "default", Name: "configmaps"}, Manager: component,
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
	})
	for _, bundle := range [][]*testpki.CA{{old, next}, {next}} {
		before := reloads()
		trust(bundle...)
		lab.Eventually(t, lab.Patience, "the agent trusts the new bundle", func() bool { return reloads() > before })
		show(next)
	}
	reconnect(t, plane)
	lab.Eventually(t, lab.Patience, "a review over a connection with the new certificate", func() bool {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, GenerateName: "shown-",
		}}
		before := reviewed()
		lab.NoError(t, plane.Client.Create(t.Context(), object))
		return reviewed() > before
	})
}

// reconnect changes the text of the bundle in the webhook configuration. An API server has a pool
// of connections for each.
func reconnect(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	configuration := lab.Stored(t, plane.Client, client.ObjectKey{Name: "runtime-watcher"},
		&admissionregistrationv1.ValidatingWebhookConfiguration{})
	config := &configuration.Webhooks[0].ClientConfig
	config.CABundle = append(config.CABundle, '\n')
	lab.NoError(t, plane.Client.Update(t.Context(), configuration))
}
