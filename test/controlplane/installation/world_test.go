package installation

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// world is a runtime, or a namespace of one, into which the agent is installed. The test is its
// kubelet.
type world struct {
	t         *testing.T
	namespace string
	opts      installation.Options
	runtime   installation.Runtime
	client    client.Client

	mu     sync.Mutex
	writes []string
	reads  []string
	// fail is the number of the write that fails, from 1.
	fail int
}

// patience is the limit for each wait, also on a busy machine.
const patience = 5 * time.Minute

// same wants two values to be equal.
func same(t *testing.T, what string, want, have any, opts ...gocmp.Option) {
	t.Helper()
	if diff := gocmp.Diff(want, have, opts...); diff != "" {
		t.Errorf("%s (-want +have):\n%s", what, diff)
	}
}

var errKilled = errors.New("killed")

func newWorld(t *testing.T, plane *apiserver.ControlPlane, name string) *world {
	t.Helper()
	w := &world{t: t, namespace: name, opts: installation.Options{
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
			if err := w.write("apply", applied.GetKind(), applied.GetName()); err != nil {
				return err
			}
			return c.Apply(ctx, object, opts...)
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
			if err := w.write("create", object.GetObjectKind().GroupVersionKind().Kind, object.GetName()); err != nil {
				return err
			}
			return c.Create(ctx, object, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			if err := w.write("delete", object.GetObjectKind().GroupVersionKind().Kind, object.GetName()); err != nil {
				return err
			}
			return c.Delete(ctx, object, opts...)
		},
	}), "Strict")
	w.runtime = installation.Runtime{
		ID: core.RuntimeID(name), Client: w.client, Secret: newSecret(t, name,
			name), Watches: []watch.Watch{watchFor("first")},
	}
	return w
}

func (w *world) write(verb, kind, name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes = append(w.writes, verb+" "+kind+" "+strings.TrimPrefix(strings.TrimPrefix(name, w.namespace),
		installation.Name))
	if len(w.writes) == w.fail {
		return errKilled
	}
	return nil
}

func (w *world) read(object apiruntime.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads = append(w.reads, object.GetObjectKind().GroupVersionKind().Kind)
}

// readSince returns the kinds that were read since its last call, in order of their names.
func (w *world) readSince() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	reads := w.reads
	w.reads = nil
	slices.Sort(reads)
	return reads
}

// managers returns the content of the file that the agents read.
func (w *world) managers() string {
	w.t.Helper()
	stored := &corev1.ConfigMap{}
	w.get(cmp.Or(w.opts.Name, installation.Name)+"-managers", stored)
	return stored.Data["managers"]
}

// since returns the writes since its last call.
func (w *world) since() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	writes := w.writes
	w.writes = nil
	return writes
}

func (w *world) installer() *installation.Installer {
	w.t.Helper()
	return rig.Must(installation.New("agent.example.com/agent:v1", "control-plane.example.com:8443", w.opts))
}

func (w *world) install() installation.Status {
	w.t.Helper()
	status, err := w.installer().Install(w.t.Context(), w.runtime)
	rig.NoError(w.t, err)
	return status
}

func (w *world) installed() {
	w.t.Helper()
	w.install()
	w.answer(1)
	if status := w.install(); status.State != installation.Ready {
		w.t.Fatalf("got %+v, want it ready", status)
	}
	w.since()
}

func (w *world) uninstall() installation.Status {
	w.t.Helper()
	status, err := w.installer().Uninstall(w.t.Context(), w.runtime)
	rig.NoError(w.t, err)
	return status
}

// answer reports that many replicas, as controllers and kubelets do.
func (w *world) answer(replicas int32) {
	w.t.Helper()
	w.available(replicas)
	if replicas > 0 {
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
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.namespace, Name: "agent", Labels: map[string]string{discoveryv1.LabelServiceName: installation.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{"192.0.2.1"},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		}},
	}
	// Not through w.client: it is not the installer's.
	if err := w.client.Create(w.t.Context(), slice); err != nil && !apierrors.IsAlreadyExists(err) {
		w.t.Fatal(err)
	}
	w.since()
}

func (w *world) deployment() *appsv1.Deployment {
	w.t.Helper()
	deployment := &appsv1.Deployment{}
	w.get(cmp.Or(w.opts.Name, installation.Name), deployment)
	return deployment
}

func (w *world) get(name string, object client.Object) {
	w.t.Helper()
	rig.NoError(w.t, w.client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, object))
}

// configuration returns nil when there is none.
func (w *world) configuration() *admissionregistrationv1.ValidatingWebhookConfiguration {
	w.t.Helper()
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	err := w.client.Get(w.t.Context(), client.ObjectKey{Name: w.opts.ConfigurationName}, configuration)
	if apierrors.IsNotFound(err) {
		return nil
	}
	rig.NoError(w.t, err)
	return configuration
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

// versions are those of everything that was installed.
func (w *world) versions() map[string]string {
	w.t.Helper()
	found := w.left()
	if configuration := w.configuration(); configuration != nil {
		found["configuration"] = configuration.ResourceVersion
	}
	return found
}

// left returns the versions of the objects in the namespace.
func (w *world) left() map[string]string {
	w.t.Helper()
	found := map[string]string{}
	for _, item := range listed(w.t, w.client) {
		if item.GetNamespace() == w.namespace {
			found[item.GetKind()+" "+item.GetName()] = item.GetResourceVersion()
		}
	}
	return found
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
	rig.NoError(w.t, w.client.Create(w.t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}))
	w.since()
}
