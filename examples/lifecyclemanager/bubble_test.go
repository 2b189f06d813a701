package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	prom "github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/cause"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// cluster is an API server in memory. Its own methods answer a test immediately.
type cluster struct {
	client.WithWatch

	name string
	// takes is the time of each answer to the operator.
	takes time.Duration
	// silent means that the operator gets no answer.
	silent atomic.Bool
}

// newCluster returns a cluster. Its name is also its UID.
func newCluster(t *testing.T, name string) *cluster {
	t.Helper()
	scheme := rig.Must(newScheme())
	rig.NoError(t, apiextensionsv1.AddToScheme(scheme))
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: types.UID(name)}}
	return &cluster{name: name, WithWatch: fake.NewClientBuilder().
		WithScheme(scheme).WithRESTMapper(mapper()).WithReturnManagedFields().WithObjects(system).
		WithStatusSubresource(&v1beta2.Kyma{}, &v1beta2.Manifest{}, &apiextensionsv1.CustomResourceDefinition{}).
		Build()}
}

// Delete changes the generation of an object with a finalizer, once, as an API server does.
func (c *cluster) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	key := client.ObjectKeyFromObject(object)
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(rig.Must(apiutil.GVKForObject(object, c.Scheme())))
	err := c.Get(ctx, key, live)
	if err != nil || live.DeletionTimestamp != nil {
		return err
	}
	if err := c.WithWatch.Delete(ctx, object, opts...); err != nil {
		return err
	}
	if err := c.Get(ctx, key, live); err != nil {
		return client.IgnoreNotFound(err)
	}
	before := live.DeepCopy()
	live.Generation++
	return c.Patch(ctx, live, client.MergeFrom(before))
}

// mapper has the kinds that the tests need.
func mapper() meta.RESTMapper {
	known := meta.NewDefaultRESTMapper([]schema.GroupVersion{
		corev1.SchemeGroupVersion, apiextensionsv1.SchemeGroupVersion, v1beta2.GroupVersion(),
	})
	for _, kind := range []string{"Kyma", "Manifest", "ModuleTemplate"} {
		known.Add(v1beta2.GroupVersion().WithKind(kind), meta.RESTScopeNamespace)
	}
	known.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
	known.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	known.Add(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"), meta.RESTScopeRoot)
	return known
}

// remoteClient is the client of the operator for a cluster.
type remoteClient struct {
	client.WithWatch

	of *cluster
}

// answer makes a call when its answer comes. Without an answer, it fails after the time of a
// request, as a connection does.
func (c *remoteClient) answer(ctx context.Context, call func() error) error {
	const longest = 15 * time.Second
	takes := c.of.takes
	if c.of.silent.Load() {
		takes = longest
	}
	err := context.DeadlineExceeded
	select {
	case <-time.After(takes):
		if takes < longest {
			return call()
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	return &url.Error{Op: http.MethodGet, URL: "https://" + c.of.name, Err: err}
}

func (c *remoteClient) Get(
	ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption,
) error {
	return c.answer(ctx, func() error { return c.WithWatch.Get(ctx, key, object, opts...) })
}

// List drops a selector of all fields, which the API server in memory does not know.
func (c *remoteClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	applied := (&client.ListOptions{}).ApplyOptions(opts)
	if applied.FieldSelector != nil && applied.FieldSelector.Empty() {
		applied.FieldSelector = nil
	}
	return c.answer(ctx, func() error { return c.WithWatch.List(ctx, list, applied) })
}

func (c *remoteClient) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	return c.answer(ctx, func() error { return c.WithWatch.Create(ctx, object, opts...) })
}

func (c *remoteClient) Update(ctx context.Context, object client.Object, opts ...client.UpdateOption) error {
	return c.answer(ctx, func() error { return c.WithWatch.Update(ctx, object, opts...) })
}

func (c *remoteClient) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	return c.answer(ctx, func() error { return c.WithWatch.Delete(ctx, object, opts...) })
}

// Patch also makes the result of a dry run, which the API server in memory does not, and serves a
// definition that is applied.
func (c *remoteClient) Patch(
	ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption,
) error {
	return c.answer(ctx, func() error {
		if dry := (&client.PatchOptions{}).ApplyOptions(opts).DryRun; len(dry) > 0 {
			return c.dryRun(ctx, object)
		}
		err := c.WithWatch.Patch(ctx, object, patch, opts...)
		if err != nil || object.GetObjectKind().GroupVersionKind().Kind != "CustomResourceDefinition" {
			return err
		}
		return c.serve(ctx, client.ObjectKeyFromObject(object))
	})
}

// ReadJSON reads that there are no kinds: no Namespace has an object of a user.
func (c *remoteClient) ReadJSON(ctx context.Context, _ string, into any) error {
	return c.answer(ctx, func() error {
		switch list := into.(type) {
		case *metav1.APIGroupList:
			list.Kind = "APIGroupList"
		case *metav1.APIResourceList:
			list.Kind = "APIResourceList"
		}
		return nil
	})
}

// dryRun merges the object that is there with the one to apply.
func (c *remoteClient) dryRun(ctx context.Context, object client.Object) error {
	applied, ok := object.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("a dry run with %T", object)
	}
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(applied.GroupVersionKind())
	err := c.WithWatch.Get(ctx, client.ObjectKeyFromObject(applied), live)
	if err == nil {
		merge(live.Object, applied.Object)
		applied.Object = live.Object
	}
	return client.IgnoreNotFound(err)
}

func merge(into, from map[string]any) {
	for key, value := range from {
		inner, isMap := value.(map[string]any)
		if known, wasMap := into[key].(map[string]any); isMap && wasMap {
			merge(known, inner)
			continue
		}
		into[key] = value
	}
}

func (c *remoteClient) serve(ctx context.Context, key client.ObjectKey) error {
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := c.WithWatch.Get(ctx, key, definition); err != nil {
		return err
	}
	definition.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{
		{Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue},
		{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue},
	}
	return c.WithWatch.Status().Update(ctx, definition)
}

// Status implements [client.StatusClient], for patches.
func (c *remoteClient) Status() client.SubResourceWriter {
	return &remoteStatus{c.WithWatch.Status(), c}
}

type remoteStatus struct {
	client.SubResourceWriter

	of *remoteClient
}

func (s *remoteStatus) Patch(
	ctx context.Context, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption,
) error {
	return s.of.answer(ctx, func() error { return s.SubResourceWriter.Patch(ctx, object, patch, opts...) })
}

// follower lets informers follow a cluster.
type follower struct{ *toolscache.ListWatch }

// IsWatchListSemanticsUnSupported tells a reflector to list first.
func (follower) IsWatchListSemanticsUnSupported() bool { return true }

func (c *cluster) follow(object runtime.Object) toolscache.ListerWatcher {
	newList := func() client.ObjectList {
		kind := rig.Must(apiutil.GVKForObject(object, c.Scheme()))
		kind.Kind += "List"
		list, _ := rig.Must(c.Scheme().New(kind)).(client.ObjectList)
		return list
	}
	return follower{&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			list := newList()
			return list, c.List(ctx, list)
		},
		WatchFuncWithContext: func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, newList())
		},
	}}
}

// manager has the clients of a cluster in memory.
type manager struct {
	ctrl.Manager

	plane *cluster
}

func (m *manager) GetClient() client.Client { return m.plane }

func (m *manager) GetAPIReader() client.Reader { return m.plane }

func (m *manager) GetEventRecorder(string) recorder.EventRecorder { return &events.FakeRecorder{} }

// bubble is the operator with clusters in memory, in virtual time.
type bubble struct {
	*testing.T

	plane    *cluster
	runtimes map[string]*cluster
	operator *watching
}

// inBubble runs a test with the controllers of the operator. It may take any time of the machine.
func inBubble(t *testing.T, test func(b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		b := &bubble{T: t, plane: newCluster(t, "plane"), runtimes: make(map[string]*cluster)}
		b.start()
		test(b)
	})
}

func (b *bubble) start() {
	b.Helper()
	ctrl.SetLogger(logr.Discard())
	scheme := b.plane.Scheme()
	mgr := rig.Must(ctrl.NewManager(&rest.Config{Host: "https://plane"}, ctrl.Options{
		Scheme:         scheme,
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper(), nil },
		NewCache: func(config *rest.Config, opts cache.Options) (cache.Cache, error) {
			opts.NewInformer = func(
				_ toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers,
			) toolscache.SharedIndexInformer {
				return toolscache.NewSharedIndexInformer(b.plane.follow(object), object, resync, indexers)
			}
			return cache.New(config, opts)
		},
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		Controller:             config.Controller{SkipNameValidation: new(true)},
	}))
	poll := time.Minute
	watched := rig.Must(fleet.New(fleet.Options{PollFresh: time.Hour, PollUnproved: poll, PollOtherwise: poll}))
	reconciles := rig.Must(newReconciles(prom.NewRegistry()))
	source := func(name core.Manager) *cause.Source {
		none := func(context.Context, core.Delivery) ([]ctrl.Request, error) { return nil, nil }
		return cause.NewSource(name, none, watched, reconciles(name))
	}
	connections := skr.NewConnections(b.plane, scheme)
	connections.Connect = func(_ context.Context, kyma client.Object) (client.Client, error) {
		there := b.runtimes[kyma.GetName()]
		return &remoteClient{there, there}, nil
	}
	b.operator = &watching{
		settings: settings{pollOtherwise: poll}, mgr: &manager{mgr, b.plane}, fleet: watched, connections: connections,
		kymas: source(kymaManager), modules: source(moduleManager),
	}
	rig.NoError(b.T, addControllers(b.operator))

	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			b.Error(err)
		}
	})
	b.Cleanup(func() {
		cancel()
		running.Wait()
	})
	synctest.Wait() // The informers follow now.
}

// register adds a runtime with its agent, and these modules.
func (b *bubble) register(there *cluster, modules ...v1beta2.Module) {
	b.Helper()
	b.registerAs(there.name, there, modules...)
}

// registerAs adds a runtime with the name of a Kyma.
func (b *bubble) registerAs(name string, there *cluster, modules ...v1beta2.Module) {
	b.Helper()
	b.runtimes[name] = there
	kyma := &v1beta2.Kyma{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kcp-system", Name: name},
		Spec:       v1beta2.KymaSpec{Channel: "regular", Modules: modules},
	}
	rig.NoError(b.T, b.plane.Create(b.Context(), kyma))
	meta.SetStatusCondition(&kyma.Status.Conditions, metav1.Condition{
		Type: v1beta2.WatcherInstalled, Status: metav1.ConditionTrue, Reason: "Installed",
	})
	rig.NoError(b.T, b.plane.Status().Update(b.Context(), kyma))
}

// publish adds a version of a module to the catalog, with that number of ConfigMaps.
func (b *bubble) publish(module v1beta2.ModuleName, version v1beta2.Version, objects int) {
	b.Helper()
	template := &v1beta2.ModuleTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kcp-system", Name: string(module) + "-" + string(version)},
		Spec:       v1beta2.ModuleTemplateSpec{Module: module, Version: version, Channels: []v1beta2.Channel{"regular"}},
	}
	for i := range objects {
		raw := fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": {"namespace": "default", "name": "%s-%d"}, "data": {"version": %q}}`, module, i, version)
		template.Spec.Resources = append(template.Spec.Resources,
			v1beta2.Resource{RawExtension: runtime.RawExtension{Raw: raw}})
	}
	rig.NoError(b.T, b.plane.Create(b.Context(), template))
}

// kyma returns that of a runtime in the control plane.
func (b *bubble) kyma(name string) *v1beta2.Kyma {
	b.Helper()
	kyma := &v1beta2.Kyma{}
	rig.NoError(b.T, b.plane.Get(b.Context(), client.ObjectKey{Namespace: "kcp-system", Name: name}, kyma))
	return kyma
}

// isReady returns a function that reports whether a runtime is ready with that version of its only
// module.
func (b *bubble) isReady(name string, version v1beta2.Version) func() bool {
	return func() bool {
		b.Helper()
		status := b.kyma(name).Status
		return status.State == v1beta2.Ready && len(status.Modules) == 1 && status.Modules[0].Version == version
	}
}

// within waits until a condition holds, and returns how long it took in virtual time.
func (b *bubble) within(limit time.Duration, what string, holds func() bool) time.Duration {
	b.Helper()
	began := time.Now()
	for !holds() {
		if time.Since(began) > limit {
			b.Fatalf("%s: not within %s: %s", what, limit, b.statuses())
		}
		time.Sleep(limit / 100)
	}
	return time.Since(began)
}

// statuses returns those of some Kymas that are not ready.
func (b *bubble) statuses() (all string) {
	b.Helper()
	list := &v1beta2.KymaList{}
	rig.NoError(b.T, b.plane.List(b.Context(), list))
	for i := range list.Items {
		status := list.Items[i].Status
		if status.State == v1beta2.Ready || len(all) > 2000 {
			continue
		}
		all += fmt.Sprintf("\n%s: %s %q %+v", list.Items[i].Name, status.State, status.Message, status.Modules)
	}
	return all
}
