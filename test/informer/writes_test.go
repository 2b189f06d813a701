package informer

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/informer"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// step is one write, with the events that it leads to.
type step struct {
	name  string
	write func()
	want  []string
}

// play makes writes one after the other. After each, a write to a marker shows that no further event
// comes.
func (s *scene) play(steps []step, mark func(), marks ...string) {
	s.t.Helper()
	for _, step := range steps {
		step.write()
		mark()
		s.t.Logf("%s", step.name)
		s.want(append(marks, step.want...)...)
	}
}

func selected(value string) map[string]string { return map[string]string{"scene": value} }

func selector(value string) watch.Selector {
	return watch.Selector{Labels: selected(value)}
}

// A custom resource with status is watched by its metadata: the generation stands for the spec.
func TestCustomResource(t *testing.T) {
	plane := sharedPlane(t)
	c := plane.Client
	labels := selected("custom")
	s := newScene(t, plane.Config,
		watch.Watch{Name: named("spec"), Manager: "spec", Resource: resource("widgets"), Selector: selector("custom")},
		watch.Watch{
			Name: named("status"), Manager: "status", Resource: resource("widgets"), Selector: selector("custom"),
			Field: core.FieldStatus,
		})
	s.awaitReady()
	marker := widget("Widget", "marker", labels, 0)
	create(t, c, marker)
	s.want("spec CREATE Widget marker")
	n := 0
	mark := func() {
		n++
		text := string(rune('a'+n%26)) + string(rune('a'+n/26))
		patch(t, c, marker, "", `{"spec":{"mark":"`+text+`"}}`)
		patch(t, c, marker, "status", `{"status":{"mark":"`+text+`"}}`)
	}
	w := widget("Widget", "w", labels, 1)
	other := widget("Widget", "other", selected("elsewhere"), 1)
	on := func(subresource, text string) func() { return func() { patch(t, c, w, subresource, text) } }
	s.play([]step{
		{"create", func() { create(t, c, w) }, []string{"spec CREATE Widget w"}},
		{"create without the labels", func() { create(t, c, other) }, nil},
		{"change the spec", on("", `{"spec":{"n":2}}`), []string{"spec UPDATE Widget w"}},
		{"write the same spec", on("", `{"spec":{"n":2}}`), nil},
		{"annotate", on("", `{"metadata":{"annotations":{"a":"b"}}}`), nil},
		{
			"set the owner", on("", `{"metadata":{"annotations":{"`+core.OwnerAnnotation+`":"a/b"}}}`),
			[]string{"spec UPDATE Widget w"},
		},
		{"another label", on("", `{"metadata":{"labels":{"a":"b"}}}`), []string{"spec UPDATE Widget w"}},
		{"status", on("status", `{"status":{"ready":true}}`), []string{"status UPDATE Widget w"}},
		{"the same status", on("status", `{"status":{"ready":true}}`), nil},
		{"dry run", func() {
			if err := c.Patch(t.Context(), w.DeepCopy(), client.RawPatch("application/merge-patch+json",
				[]byte(`{"spec":{"n":9}}`)), client.DryRunAll); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"labels stop to match", on("", `{"metadata":{"labels":{"scene":"no"}}}`), []string{"spec DELETE Widget w"}},
		{"a change while they do not match", on("", `{"spec":{"n":3}}`), nil},
		{
			"labels begin to match", on("", `{"metadata":{"labels":{"scene":"custom"}}}`),
			[]string{"spec CREATE Widget w", "status UPDATE Widget w"},
		},
		{"add a finalizer", on("", `{"metadata":{"finalizers":["example.com/f"]}}`), nil},
		{"delete, held by the finalizer", func() { remove(t, c, w) }, []string{"spec UPDATE Widget w"}},
		{"remove the finalizer", on("", `{"metadata":{"finalizers":null}}`), []string{"spec DELETE Widget w"}},
		{"delete the other", func() { remove(t, c, other) }, nil},
	}, mark, "spec UPDATE Widget marker", "status UPDATE Widget marker")
}

// Kinds of Kubernetes are watched as whole objects: a Deployment also counts annotations as
// generations, and a ConfigMap has none.
func TestKindsOfKubernetes(t *testing.T) {
	plane := sharedPlane(t)
	c := plane.Client
	labels := selected("builtin")
	of := func(manager core.Manager, group, plural string) watch.Watch {
		return watch.Watch{
			Name: named(string(manager)), Manager: manager, Selector: selector("builtin"),
			Resource: schema.GroupVersionResource{Group: group, Version: "v1", Resource: plural},
		}
	}
	s := newScene(t, plane.Config, of("d", "apps", "deployments"), of("c", "", "configmaps"))
	s.awaitReady()
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, Labels: labels}
	}
	marker := &corev1.ConfigMap{ObjectMeta: meta("marker")}
	lastOfDeployments := deployment(meta("marker"))
	create(t, c, marker, lastOfDeployments)
	s.want("c CREATE ConfigMap marker", "d CREATE Deployment marker")
	n := 0
	mark := func() {
		n++
		text := string(rune('a' + n))
		patch(t, c, marker, "", `{"data":{"mark":"`+text+`"}}`)
		patch(t, c, lastOfDeployments, "", `{"spec":{"template":{"metadata":{"annotations":{"mark":"`+text+`"}}}}}`)
	}
	d, m := deployment(meta("d")), &corev1.ConfigMap{ObjectMeta: meta("m"), Data: map[string]string{"a": "b"}}
	s.play([]step{
		{"create", func() { create(t, c, d, m) }, []string{"d CREATE Deployment d", "c CREATE ConfigMap m"}},
		{"scale", func() { patch(t, c, d, "", `{"spec":{"replicas":2}}`) }, []string{"d UPDATE Deployment d"}},
		{"scale by the subresource", func() { scale(t, c, d, 3) }, []string{"d UPDATE Deployment d"}},
		{"annotate a Deployment", func() { patch(t, c, d, "", `{"metadata":{"annotations":{"a":"b"}}}`) }, nil},
		{"status", func() { patch(t, c, d, "status", `{"status":{"observedGeneration":1}}`) }, nil},
		{"data", func() { patch(t, c, m, "", `{"data":{"a":"c"}}`) }, []string{"c UPDATE ConfigMap m"}},
		{
			"annotate a ConfigMap", func() { patch(t, c, m, "", `{"metadata":{"annotations":{"a":"b"}}}`) },
			[]string{"c UPDATE ConfigMap m"},
		},
		{"delete", func() { remove(t, c, d); remove(t, c, m) }, []string{"d DELETE Deployment d", "c DELETE ConfigMap m"}},
	}, mark, "c UPDATE ConfigMap marker", "d UPDATE Deployment marker")
}

func scale(t *testing.T, c client.Client, d *appsv1.Deployment, replicas int32) {
	t.Helper()
	body := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}
	if err := c.SubResource("scale").Update(t.Context(), d, client.WithSubResourceBody(body)); err != nil {
		t.Fatal(err)
	}
}

func deployment(meta metav1.ObjectMeta) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "d"}},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "d"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "app:v1"}}},
		},
	}}
}

// Namespaces are selected by name at the API server, and by their labels in the source.
func TestNamespaces(t *testing.T) {
	plane := sharedPlane(t)
	c := plane.Client
	for name, tenant := range map[string]string{"tenant-a": "yes", "tenant-b": "no", "tenant-c": "yes"} {
		create(t, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"tenant": tenant}}})
	}
	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	s := newSceneWith(t, plane.Config, informer.Options{ExcludedNamespaces: []string{"tenant-c"}}, watch.Watch{
		Name: named("labels"), Manager: "labels", Resource: configMaps, Selector: selector("namespaces"),
		NamespaceSelector: watch.Selector{Labels: map[string]string{"tenant": "yes"}},
	})
	one := newSceneWith(t, plane.Config, informer.Options{Namespace: "tenant-b"},
		watch.Watch{Name: named("one"), Manager: "one", Resource: configMaps})
	one.awaitReady()
	s.awaitReady()
	for _, namespace := range []string{"tenant-a", "tenant-b", "tenant-c"} {
		create(t, c, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "in-" + namespace, Labels: selected("namespaces"),
		}})
	}
	create(t, c, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "tenant-a", Name: "marker", Labels: selected("namespaces"),
	}})
	s.want("labels CREATE ConfigMap in-tenant-a", "labels CREATE ConfigMap marker")
	one.want("one CREATE ConfigMap in-tenant-b")
}
