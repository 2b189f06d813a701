package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// Watch makes the API server of a runtime send its reviews to an agent, and returns when the agent
// gets them.
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
// to webhooks, as in docs/guide/installing-agents.md. It returns the path for
// --admission-control-config-file. Users have the names by which it chooses one: <host>:<port>, or "*" for every webhook.
func AdmissionConfiguration(t testing.TB, users map[string]*clientcmdapi.AuthInfo) string {
	t.Helper()

	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "webhooks.kubeconfig")
	file := filepath.Join(dir, "admission.yaml")
	config := clientcmdapi.NewConfig()
	config.AuthInfos = users
	NoError(t, clientcmd.WriteToFile(*config, kubeconfig))
	NoError(t, os.WriteFile(file, []byte(`apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
  - name: ValidatingAdmissionWebhook
    configuration:
      apiVersion: apiserver.config.k8s.io/v1
      kind: WebhookAdmissionConfiguration
      kubeConfigFile: `+kubeconfig+"\n"), 0o600))

	return file
}

// Review returns the AdmissionReview of the creation of a ConfigMap.
func Review(name string) string {
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"uid-1",`+
		`"kind":{"group":"","version":"v1","kind":"ConfigMap"},"resource":{"group":"","version":"v1",`+
		`"resource":"configmaps"},`+
		`"name":%[1]q,"namespace":"default","operation":"CREATE","userInfo":{},"dryRun":false,"oldObject":null,`+
		`"object":{`+
		`"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%[1]q,"namespace":"default"}}}}`, name)
}

// Post posts JSON. The caller closes the body of the answer.
func Post(ctx context.Context, caller *http.Client, url, body string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}

	request.Header.Set("Content-Type", "application/json")
	return caller.Do(request)
}

// Ask posts a review to a webhook as an API server does, and fails unless the webhook allows the write.
func Ask(ctx context.Context, caller *http.Client, url, review string) error {
	answer, err := Post(ctx, caller, url, review)
	if err != nil {
		return err
	}
	defer answer.Body.Close()

	var reply struct {
		Response struct {
			UID     string `json:"uid"`
			Allowed bool   `json:"allowed"`
		} `json:"response"`
	}

	err = json.NewDecoder(answer.Body).Decode(&reply)
	if err != nil || answer.StatusCode != http.StatusOK || reply.Response.UID != "uid-1" || !reply.Response.Allowed {
		return fmt.Errorf("answer %s, %+v (%w), want it allowed", answer.Status, reply.Response, err)
	}

	return nil
}

// RegisterSlowWebhook allows all writes to ConfigMaps with the label delay=<delay>, after that
// delay. It waits until the API server calls the webhook.
func RegisterSlowWebhook(t testing.TB, runtime *apiserver.ControlPlane, pki *PKI, delay time.Duration) {
	t.Helper()

	labels := map[string]string{"delay": delay.String()}
	port, called := startSlowWebhook(t, pki, delay)
	Register(t, runtime, "slow-"+delay.String(), port, pki.CA.PEM,
		admission.ConfigurationOptions{Timeout: 30 * time.Second}, watch.Watch{
			Name:     types.NamespacedName{Namespace: "slow", Name: strings.ReplaceAll(delay.String(), ".", "-")},
			Manager:  "slow",
			Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
			Selector: watch.Selector{Labels: labels},
		})

	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, GenerateName: "probe-", Labels: labels,
	}}
	// A configuration takes effect after a while.
	Eventually(t, patience, "the slow webhook is called", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), min(delay, time.Second)/2)
		defer cancel()

		_ = runtime.Client.Create(ctx, probe.DeepCopy(), client.DryRunAll) // It need not end.
		return called.Load()
	})
}

func startSlowWebhook(t testing.TB, pki *PKI, delay time.Duration) (port int, called *atomic.Bool) {
	t.Helper()

	called = new(atomic.Bool)
	server := httptest.NewUnstartedServer(&webhook.Admission{Handler: ctrladmission.HandlerFunc(
		func(ctx context.Context, _ webhook.AdmissionRequest) webhook.AdmissionResponse {
			called.Store(true)
			periodic.Pause(ctx, delay)
			return webhook.Allowed("")
		})})

	server.TLS = keys.WebhookTLSConfig(pki.ServerMaterial(), nil)
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	address, _ := server.Listener.Addr().(*net.TCPAddr)

	return address.Port, called
}

// Canary is a Lease, and a service account that may patch it and do nothing else.
type Canary struct {
	Lease types.NamespacedName
	// Env contains the settings of an agent with this canary, except for its interval.
	Env map[string]string
}

// NewCanary creates the Lease and the service account in a runtime, both with the given name.
func NewCanary(t testing.TB, runtime *apiserver.ControlPlane, name string) *Canary {
	t.Helper()

	c := &Canary{Lease: types.NamespacedName{Namespace: Namespace, Name: name}, Env: map[string]string{}}
	c.Env["CANARY_LEASE"] = c.Lease.String()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}}
	grant(t, runtime, "CANARY", name, c.Env, []rbacv1.PolicyRule{{
		APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, ResourceNames: []string{name},
		Verbs: []string{"patch"},
	}}, lease)

	return c
}

// Account creates a service account, and other objects such as its rights, unless they exist. It
// returns a token of the account.
func Account(
	ctx context.Context, cluster client.Client, name types.NamespacedName, others ...client.Object,
) (token []byte, err error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	for _, object := range append(others, account) {
		if err := client.IgnoreAlreadyExists(cluster.Create(ctx, object)); err != nil {
			return nil, err
		}
	}

	request := &authenticationv1.TokenRequest{}
	err = cluster.SubResource("token").Create(ctx, account, request)
	return []byte(request.Status.Token), err
}

// UseAccount adds the settings with a prefix by which an agent uses a service account.
func UseAccount(
	t testing.TB, runtime *apiserver.ControlPlane, name types.NamespacedName, prefix string, env map[string]string,
) {
	t.Helper()

	token, err := Account(t.Context(), runtime.Client, name)
	NoError(t, err)
	signIn(t, runtime, token, prefix, env)
}

func signIn(t testing.TB, runtime *apiserver.ControlPlane, token []byte, prefix string, env map[string]string) {
	t.Helper()

	env[prefix+"_API_SERVER"] = runtime.Config.Host
	env[prefix+"_TOKEN_FILE"] = write(t, "token", token)
	env[prefix+"_CA_CERT"] = write(t, "ca.crt", runtime.Config.CAData)
}

func write(t testing.TB, name string, text []byte) string {
	t.Helper()

	path := filepath.Join(t.TempDir(), name)
	NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

// Inform creates a service account that may watch, and adds the settings of an agent that watches with it.
func Inform(t testing.TB, runtime *apiserver.ControlPlane, name string, env map[string]string, watches ...watch.Watch) {
	t.Helper()

	env["SOURCE"], env["WATCHERS"] = "informer", string(Must(json.Marshal(watch.DocumentOf(watches))))
	var rules []rbacv1.PolicyRule

	for _, w := range watches {
		rules = append(rules, rbacv1.PolicyRule{
			APIGroups: []string{w.Resource.Group}, Resources: []string{w.Resource.Resource}, Verbs: []string{"list", "watch"},
		})
	}

	grant(t, runtime, "INFORMER", name, env, rules)
}

// grant creates a service account with rules, and adds the settings with a prefix that use it.
func grant(t testing.TB, runtime *apiserver.ControlPlane, prefix, name string, env map[string]string, rules []rbacv1.PolicyRule,
	others ...client.Object,
) {
	t.Helper()

	token, err := Account(t.Context(), runtime.Client, types.NamespacedName{Namespace: Namespace, Name: name}, append(others,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: Namespace, Name: name}},
		})...)

	NoError(t, err)
	signIn(t, runtime, token, prefix, env)
}
