package lab

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// Watch makes the API server of a runtime send its reviews to an agent, and returns when it does.
func Watch(t testing.TB, runtime *apiserver.ControlPlane, agent *Agent, caBundle []byte,
	watches ...watch.Watch,
) {
	t.Helper()
	// With the default, writes could pass unreviewed on a busy machine. The delete of an object is then lost.
	opts := admission.ConfigurationOptions{Timeout: 30 * time.Second}
	Register(t, runtime, "runtime-watcher", agent.WebhookPort, caBundle, opts, watches...)
	AwaitReviews(t, runtime, agent, watches[0].Selector.Labels)
}

// Register creates a webhook configuration of that name for a webhook on this machine. It takes
// effect some time later. It has no match conditions, so that the webhook sees every write.
func Register(
	t testing.TB, runtime *apiserver.ControlPlane, name string, port int, caBundle []byte,
	opts admission.ConfigurationOptions, watches ...watch.Watch,
) {
	t.Helper()
	opts.NoMatchConditions = true
	configuration, err := admission.WebhookConfiguration(name, admission.Endpoint{
		URL: "https://" + Address(port), CABundle: caBundle,
	}, watches, opts)
	NoError(t, err)
	create(t, runtime, configuration)
}

// create creates objects, and removes them when the test ends.
func create(t testing.TB, plane *apiserver.ControlPlane, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		NoError(t, plane.Client.Create(t.Context(), object))
		t.Cleanup(func() {
			err := plane.Client.Delete(context.WithoutCancel(t.Context()), object)
			if client.IgnoreNotFound(err) != nil {
				t.Error(err)
			}
		})
	}
}

// AwaitReviews makes dry-run writes, which send nothing, until the API server calls the agent.
func AwaitReviews(t testing.TB, runtime *apiserver.ControlPlane, agent *Agent, labels map[string]string) {
	t.Helper()
	Eventually(t, patience, "the API server calls the agent", func() bool {
		probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			GenerateName: "probe-",
			Namespace:    metav1.NamespaceDefault, Labels: labels,
		}}
		NoError(t, runtime.Client.Create(t.Context(), probe, client.DryRunAll))
		return agent.Metric("runtime_watcher_agent_admission_reviews_total", `decision="dry_run"`) > 0
	})
}

// AdmissionConfiguration writes a configuration that makes an API server show a client certificate
// to webhooks, as in docs/security.md. It returns the path for --admission-control-config-file.
// Users have the names by which it chooses one: <host>:<port>, or "*" for every webhook.
func AdmissionConfiguration(t testing.TB, users map[string]*clientcmdapi.AuthInfo) string {
	t.Helper()
	dir := t.TempDir()
	kubeconfig, file := filepath.Join(dir, "webhooks.kubeconfig"), filepath.Join(dir, "admission.yaml")
	config := clientcmdapi.NewConfig()
	config.AuthInfos = users
	NoError(t, clientcmd.WriteToFile(*config, kubeconfig))
	if err := os.WriteFile(file, []byte(`apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
  - name: ValidatingAdmissionWebhook
    configuration:
      apiVersion: apiserver.config.k8s.io/v1
      kind: WebhookAdmissionConfiguration
      kubeConfigFile: `+kubeconfig+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
