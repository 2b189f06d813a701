// Package installation proves controlplane/installation and deploy/ against real API
// servers.
package installation

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
)

func TestMain(m *testing.M) { os.Exit(rig.RunTests(m)) }

// world is a runtime, or a namespace of one, into which the agent is installed. The test is its
// kubelet.
type world struct {
	t         *testing.T
	plane     *apiserver.ControlPlane
	namespace string
	opts      installation.Options
	runtime   installation.Runtime
	client    client.Client
	// kept is one installer for several calls, as an operator has it, with now as its clock. Without it, each call is
	// that of a new process, with the present options.
	kept *installation.Installer
	now  time.Time

	mu     sync.Mutex
	writes []string
	reads  []string
	// fail is the number of the write that fails, from 1.
	fail int
}

var errKilled = errors.New("killed")

// newWorld has the name for its namespace, its webhook configuration and its runtime.
func newWorld(t *testing.T, plane *apiserver.ControlPlane, name string) *world {
	t.Helper()
	w := &world{t: t, plane: plane, namespace: name, now: time.Now(), opts: installation.Options{
		Namespace: name, ConfigurationName: name,
		NoCanary: true,
	}}
	reading := rig.Must(client.NewWithWatch(plane.Config, client.Options{}))
	// Strict: an unknown field is an error.
	w.client = client.WithFieldValidation(interceptor.NewClient(reading, interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, object apiruntime.ApplyConfiguration,
			opts ...client.ApplyOption,
		) error {
			applied := object.(interface {
				GetKind() string
				GetName() string
			})
			return w.write("apply", applied.GetKind(), applied.GetName(), func() error { return c.Apply(ctx, object, opts...) })
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object,
			opts ...client.GetOption,
		) error {
			w.read(object)
			return c.Get(ctx, key, object, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			w.read(list)
			return c.List(ctx, list, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
			return w.write("create", kindOf(object), object.GetName(), func() error { return c.Create(ctx, object, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			verb := "patch"
			if len((&client.PatchOptions{}).ApplyOptions(opts).DryRun) > 0 {
				verb = "try"
			}
			return w.write(verb, kindOf(object), object.GetName(), func() error { return c.Patch(ctx, object, patch, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			return w.write("delete", kindOf(object), object.GetName(), func() error { return c.Delete(ctx, object, opts...) })
		},
	}), "Strict")
	w.runtime = installation.Runtime{
		ID: core.RuntimeID(name), Client: withDocuments(plane, w.client), Secret: w.newSecret(name), Watches: []watch.Watch{watchFor("first")},
	}
	return w
}

// withDocuments returns a client that lists the kinds of the API server, too, as those of package
// remote do.
func withDocuments(plane *apiserver.ControlPlane, c client.Client) client.Client {
	type documents interface {
		ReadJSON(ctx context.Context, path string, into any) error
	}
	reader, _ := rig.Must(remote.NewClient(plane.Config, client.Options{})).(documents)
	return struct {
		client.Client
		documents
	}{c, reader}
}

// keep installs with one installer from now on, with the canary unless it is an informer, and is ready.
func (w *world) keep() {
	w.t.Helper()
	w.opts.NoCanary = false
	w.opts.Now = func() time.Time { return w.now }
	w.kept = w.installer()
	w.installed()
	w.readSince()
}

// newSecret returns the Secret of a runtime, with a CA of its own, a client certificate and a
// serving certificate for the Service in the namespace.
func (w *world) newSecret(runtime string) map[string][]byte {
	return newSecretFor(w.t, runtime, installation.Name, w.namespace)
}

// newSecretFor is for another Service.
func newSecretFor(t *testing.T, runtime, service, namespace string) map[string][]byte {
	t.Helper()
	ca := rig.NewPKI(t).CA
	secret := testpki.Files(rig.Must(ca.Client(runtime, testpki.Options{})), ca)
	pair := testpki.Files(rig.Must(ca.Server("", testpki.Options{DNSNames: []string{service + "." + namespace + ".svc"}})), ca)
	secret["webhook.crt"] = pair["tls.crt"]
	secret["webhook.key"] = pair["tls.key"]
	return secret
}

// newSecretOfOnePair returns a Secret with the keys of today's fleet: one certificate for both
// uses.
func newSecretOfOnePair(t *testing.T, runtime, namespace string) map[string][]byte {
	t.Helper()
	ca := rig.NewPKI(t).CA
	host := installation.Name + "." + namespace + ".svc"
	return testpki.Files(rig.Must(ca.Client(runtime, testpki.Options{DNSNames: []string{host}, Usages: rig.BothUsages()})), ca)
}

func kindOf(object apiruntime.Object) string { return object.GetObjectKind().GroupVersionKind().Kind }

// write notes a write, and does it unless it is the one that fails.
func (w *world) write(verb, kind, name string, do func() error) error {
	w.mu.Lock()
	w.writes = append(w.writes, verb+" "+kind+" "+strings.TrimPrefix(strings.TrimPrefix(name, w.namespace),
		installation.Name))
	fails := len(w.writes) == w.fail
	w.mu.Unlock()
	if fails {
		return errKilled
	}
	return do()
}

func (w *world) read(object apiruntime.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads = append(w.reads, kindOf(object))
}

// readSince returns the kinds that were read since its last call, in order of their names.
func (w *world) readSince() []string { return slices.Sorted(slices.Values(w.taken(&w.reads))) }

// since returns the writes since its last call.
func (w *world) since() []string { return w.taken(&w.writes) }

func (w *world) taken(noted *[]string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { *noted = nil }()
	return *noted
}

func (w *world) managers() string {
	w.t.Helper()
	return get(w, cmp.Or(w.opts.Name, installation.Name)+"-managers", &corev1.ConfigMap{}).Data["managers"]
}

func (w *world) installer() *installation.Installer {
	w.t.Helper()
	return rig.Must(installation.New(installation.Parts{Image: "agent.example.com/agent:v1", ControlPlane: "control-plane.example.com:8443"}, w.opts))
}

func (w *world) install() installation.Status {
	w.t.Helper()
	installer := w.kept
	if installer == nil {
		installer = w.installer()
	}
	status, err := installer.Install(w.t.Context(), w.runtime)
	rig.NoError(w.t, err)
	return status
}

// is wants a state with a message that has these parts.
func (w *world) is(status installation.Status, state installation.State, says ...string) installation.Status {
	w.t.Helper()
	if status.State != state {
		w.t.Errorf("got %+v, want it %s", status, state)
	}
	rig.Says(w.t, "message", status.Message, says...)
	return status
}

func (w *world) installed() {
	w.t.Helper()
	w.install()
	w.answer(1)
	w.is(w.install(), installation.Ready)
	w.since()
}

// formerly installs, and wants the managers that are gone to be reported.
func (w *world) formerly(want ...core.Manager) {
	w.t.Helper()
	rig.Same(w.t, "former managers", want, w.install().Former)
}

func (w *world) uninstall() installation.Status {
	w.t.Helper()
	status, err := w.installer().Uninstall(w.t.Context(), w.runtime)
	rig.NoError(w.t, err)
	return status
}

// refused wants an installation to fail with a reason.
func refused(t *testing.T, what string, installer *installation.Installer, r installation.Runtime, reason string, says ...string) {
	t.Helper()
	_, err := installer.Install(t.Context(), r)
	rig.Same(t, what, reason, string(core.ReasonOf(err)))
	rig.Fails(t, what, err, says...)
}

// answer reports that many replicas, as controllers and kubelets do. Nothing calls an informer.
func (w *world) answer(replicas int32) {
	w.t.Helper()
	w.available(replicas)
	if !w.opts.Informer {
		w.endpoint()
	}
}

func (w *world) available(replicas int32) {
	w.t.Helper()
	wanted := *w.deployment().Spec.Replicas
	w.rollout(appsv1.DeploymentStatus{
		Replicas: wanted, UpdatedReplicas: wanted, ReadyReplicas: replicas, AvailableReplicas: replicas,
	})
}

// rollout writes a status as the controller of Deployments does.
func (w *world) rollout(status appsv1.DeploymentStatus) {
	w.t.Helper()
	deployment := w.deployment()
	status.ObservedGeneration = deployment.Generation
	deployment.Status = status
	rig.NoError(w.t, w.client.Status().Update(w.t.Context(), deployment))
}

func (w *world) endpoint() {
	w.t.Helper()
	slice := manifests.Object(w.t, `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
		metadata: {name: agent, labels: {kubernetes.io/service-name: runtime-watcher}},
		endpoints: [{addresses: [192.0.2.1], conditions: {ready: true}}]}`)
	slice.SetNamespace(w.namespace)
	// Not through w.client: it is not the installer's.
	rig.NoError(w.t, client.IgnoreAlreadyExists(w.plane.Client.Create(w.t.Context(), slice)))
}

func (w *world) deployment() *appsv1.Deployment {
	w.t.Helper()
	return get(w, cmp.Or(w.opts.Name, installation.Name), &appsv1.Deployment{})
}

// pod returns the pod of the Deployment, and its container.
func (w *world) pod() (corev1.PodSpec, corev1.Container) {
	w.t.Helper()
	pod := w.deployment().Spec.Template.Spec
	return pod, pod.Containers[0]
}

func (w *world) environment() map[string]string {
	w.t.Helper()
	env := map[string]string{}
	_, container := w.pod()
	for _, variable := range container.Env {
		env[variable.Name] = variable.Value
	}
	return env
}

func get[T client.Object](w *world, name string, object T) T {
	w.t.Helper()
	return rig.Stored(w.t, w.client, client.ObjectKey{Namespace: w.namespace, Name: name}, object)
}

// found returns an object, nil when there is none.
func found[T client.Object](w *world, namespace, name string, object T) (none T) {
	w.t.Helper()
	err := w.client.Get(w.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, object)
	if apierrors.IsNotFound(err) {
		return none
	}
	rig.NoError(w.t, err)
	return object
}

func (w *world) configuration() *admissionregistrationv1.ValidatingWebhookConfiguration {
	w.t.Helper()
	return found(w, "", w.opts.ConfigurationName, &admissionregistrationv1.ValidatingWebhookConfiguration{})
}

func (w *world) webhooks() (names []string) {
	w.t.Helper()
	configuration := w.configuration()
	if configuration == nil {
		return nil
	}
	for i := range configuration.Webhooks {
		if *configuration.Webhooks[i].FailurePolicy != admissionregistrationv1.Ignore {
			w.t.Errorf("webhook %s: failures are not ignored", configuration.Webhooks[i].Name)
		}
		names = append(names, strings.TrimSuffix(configuration.Webhooks[i].Name, ".operator.kyma-project.io"))
	}
	return names
}

// versions are those of everything that was installed: in the namespace, and the webhook configuration.
func (w *world) versions() map[string]string {
	w.t.Helper()
	found := map[string]string{}
	for _, item := range w.objects() {
		found[item.GetKind()+" "+item.GetName()] = item.GetResourceVersion()
	}
	return found
}

func (w *world) objects() []unstructured.Unstructured {
	w.t.Helper()
	return slices.DeleteFunc(listed(w.t, w.client), func(o unstructured.Unstructured) bool {
		return o.GetNamespace() != w.namespace && o.GetName() != w.opts.ConfigurationName
	})
}

// listed returns the objects of all agents in a runtime. A label selects them, as each namespace also has objects of
// Kubernetes itself.
func listed(t *testing.T, c client.Client) (objects []unstructured.Unstructured) {
	t.Helper()
	for _, kind := range append(kinds(), [2]string{"admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"}) {
		list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": kind[0], "kind": kind[1] + "List"}}
		rig.NoError(t, c.List(t.Context(), list, client.MatchingLabels{"app.kubernetes.io/name": installation.Name}))
		objects = append(objects, list.Items...)
	}
	return objects
}

// createNamespace creates the namespace before the installer does, which must not remove it then.
func (w *world) createNamespace() {
	w.t.Helper()
	rig.NoError(w.t, w.plane.Client.Create(w.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}))
}
