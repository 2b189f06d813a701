package main

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
	"github.com/runtime-watcher/runtime-watcher/test/lab/node"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

// lines are what the operator prints. It is safe for concurrent use.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(line string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), line+"\n")
}

const image = "agent.example/agent:test"

// world is a control plane with the operator, and one cluster with its agents.
type world struct {
	*testing.T

	plane, cluster *apiserver.ControlPlane
	printed        lines
}

func newWorld(t *testing.T) *world {
	t.Helper()
	lab.SkipShort(t)
	w := &world{T: t}
	logs := t.TempDir()
	machines := node.NewHost(t, node.Options{
		Images: map[string]string{image: lab.Build(t, "cmd/agent")},
		Host: node.HostOptions{
			Env:  []string{"STOP_DELAY=0s", "SHUTDOWN_TIMEOUT=1s"},
			Log:  func(d types.NamespacedName) string { return filepath.Join(logs, d.Name+".log") },
			Note: func(line string) { t.Log(line) },
		},
	})
	planes := apiserver.StartAllT(t,
		apiserver.Options{
			Scheme: lab.Must(newScheme()), CRDPaths: []string{"config/clusters.yaml"},
			CRDs: []*apiextensionsv1.CustomResourceDefinition{manifests.WatchersOf(t, fleetNames)},
		},
		apiserver.Options{APIServerArgs: machines.APIServerArgs()})
	w.plane = planes[0]
	w.cluster = planes[1]
	machines.Start(w.cluster)
	certmanager.StartT(t, w.plane.Kubeconfig, certmanager.Options{})

	addr := lab.Address(lab.FreePort(t))
	mgr := lab.NewManager(t, w.plane.Config, lab.Must(newScheme()))
	_, port, _ := strings.Cut(addr, ":")
	lab.NoError(t, setUp(mgr, settings{
		addr: addr, address: "localhost:" + port, image: image, namespace: lab.Namespace, warmUp: time.Millisecond,
	}, &w.printed))
	lab.Run(t, "operator", mgr.Start)
	return w
}

func (w *world) eventually(what string, condition func() bool) {
	w.Helper()
	lab.Eventually(w, lab.Patience, what, condition)
}

// The whole way of an operator that uses its own names, from the custom resource to the reconcile.
func TestNoObjectHasANameOfAnotherProject(t *testing.T) {
	w := newWorld(t)
	w.register("blue")
	watch := &v1beta2.Watcher{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: lab.Namespace, Name: "settings", Labels: map[string]string{fleetNames.ManagedBy(): manager},
		},
		// No operator without routes needs a service and a gateway.
		Spec: v1beta2.WatcherSpec{
			ResourceToWatch: v1beta2.WatchableGVR{Version: "v1", Resource: "configmaps"},
			LabelsToWatch:   map[string]v1beta2.LabelValue{"fleet.example.com/watched": "true"},
		},
	}
	lab.NoError(t, w.plane.Client.Create(t.Context(), watch))
	w.webhookIs("default.settings.operator.fleet.example.com")
	w.eventually("the Watcher is ready", func() bool {
		lab.Stored(t, w.plane.Client, client.ObjectKeyFromObject(watch), watch)
		return watch.Status.State == "Ready"
	})

	// A change in the cluster reconciles the Cluster.
	before := w.printed.count("reconcile blue")
	w.eventually("a change reconciles the cluster", func() bool {
		lab.NoError(t, w.cluster.Client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", GenerateName: "setting-", Labels: map[string]string{"fleet.example.com/watched": "true"},
			Annotations: map[string]string{fleetNames.OwnerAnnotation: "default/blue"},
		}}))
		return w.printed.count("reconcile blue") > before
	})

	stored := newCluster()
	lab.Stored(t, w.plane.Client, client.ObjectKey{Namespace: lab.Namespace, Name: "blue"}, stored)
	lab.Same(t, "finalizers of the Cluster", []string{"fleet.example.com/runtime-watcher"}, stored.Finalizers)
	deployment := lab.Stored(t, w.cluster.Client,
		client.ObjectKey{Namespace: installation.Name, Name: installation.Name}, &appsv1.Deployment{})
	lab.Same(t, "mark of the Deployment", "fleet.example.com", deployment.Annotations[fleetNames.InstalledBy()])

	// No object has another name, and the control finds the own one.
	for name, plane := range map[string]*apiserver.ControlPlane{"control plane": w.plane, "cluster": w.cluster} {
		all := contents(t, plane)
		if n := len(all); n < 20 {
			t.Fatalf("%s: only %d objects were read", name, n)
		}
		own := 0
		for object, text := range all {
			if strings.Contains(strings.ToLower(text), "kyma") || strings.Contains(text, "skr-") {
				t.Errorf("%s: %s has a name of another project:\n%s", name, object, text)
			}
			if strings.Contains(text, "fleet.example.com/") {
				own++
			}
		}
		if own < 5 {
			t.Errorf("%s: %d objects have a name of the operator, want more", name, own)
		}
	}

	// The deletion finds all that the names mark.
	gone := &unstructured.Unstructured{}
	gone.SetGroupVersionKind(clusterKind)
	gone.SetNamespace(stored.Namespace)
	gone.SetName(stored.Name)
	lab.NoError(t, w.plane.Client.Delete(t.Context(), gone))
	w.eventually("the Cluster is gone", func() bool {
		return apierrors.IsNotFound(w.plane.Client.Get(t.Context(), client.ObjectKeyFromObject(stored), newCluster()))
	})
	left := lab.Left(t, w.cluster, func(o *metav1.PartialObjectMetadata) bool {
		_, isOurs := o.Annotations[fleetNames.InstalledBy()]
		return isOurs
	})
	if len(left) > 0 {
		t.Errorf("the deletion leaves %q in the cluster", left)
	}
}

// The API server takes the shape of lifecycle-manager in a group of an operator, too, and refuses
// what the definition of the default group refuses.
func TestDefinitionInAnAPIServer(t *testing.T) {
	lab.SkipShort(t)
	plane := apiserver.StartT(t, apiserver.Options{
		Scheme: lab.Must(newScheme()),
		CRDs:   []*apiextensionsv1.CustomResourceDefinition{manifests.WatchersOf(t, fleetNames), manifests.Watchers(t)},
	})
	for kind, group := range map[string]string{"ClusterWatch": fleetNames.Group, "Watcher": "operator.kyma-project.io"} {
		create := func(name, spec string) error {
			object := &unstructured.Unstructured{}
			lab.NoError(t, json.Unmarshal([]byte(spec), &object.Object))
			object.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1beta2", Kind: kind})
			object.SetNamespace("default")
			object.SetName(name)
			return plane.Client.Create(t.Context(), object)
		}
		const resource = `"resourceToWatch":{"group":"","version":"v1","resource":"configmaps"}`
		lab.NoError(t, create("today", `{"spec":{`+resource+`,"serviceInfo":{"name":"a","namespace":"b","port":1},
			"labelsToWatch":{"a":"b"},"field":"spec","gateway":{"selector":{"matchLabels":{"a":"b"}}}}}`))
		lab.NoError(t, create("neither", `{"spec":{"manager":"m",`+resource+`}}`))
		lab.Fails(t, "an empty selector", create("empty", `{"spec":{`+resource+`,"gateway":{"selector":{}}}}`), "at least one label")
		lab.Fails(t, "half a service", create("half", `{"spec":{`+resource+`,"serviceInfo":{"name":"a"}}}`), "serviceInfo")
		lab.NoError(t, create(strings.Repeat("a", 162), `{"spec":{`+resource+`}}`))
		most := map[string]int{"ClusterWatch": 162, "Watcher": 164}[kind]
		lab.Fails(t, "a name that is too long", create(strings.Repeat("a", most+1), `{"spec":{`+resource+`}}`), "at most 16")
	}
}

// register creates a Cluster, and the Secret with its kubeconfig.
func (w *world) register(name string) {
	w.Helper()
	meta := metav1.ObjectMeta{
		Namespace: lab.Namespace, Name: name, Labels: map[string]string{fleetNames.Key("cluster"): name},
		Annotations: map[string]string{fleetNames.DomainAnnotation: name + ".example.com"},
	}
	kubeconfig := lab.Must(os.ReadFile(w.cluster.Kubeconfig))
	lab.NoError(w, w.plane.Client.Create(w.Context(), &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"kubeconfig": kubeconfig}}))
	cluster := &unstructured.Unstructured{}
	cluster.SetGroupVersionKind(clusterKind)
	cluster.SetNamespace(meta.Namespace)
	cluster.SetName(meta.Name)
	cluster.SetAnnotations(meta.Annotations)
	lab.NoError(w, w.plane.Client.Create(w.Context(), cluster))
}

// webhookIs waits for a webhook of that name in the cluster, and for its agents.
func (w *world) webhookIs(name string) {
	w.Helper()
	w.eventually("the webhook "+name, func() bool {
		configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
		if w.cluster.Client.Get(w.Context(), client.ObjectKey{Name: installation.Name}, configuration) != nil {
			return false
		}
		for _, webhook := range configuration.Webhooks {
			if webhook.Name == name {
				return true
			}
		}
		return false
	})
}

// contents returns the whole text of all objects of a cluster, except Events, by kind and name. The
// data of Secrets is decoded.
func contents(t *testing.T, plane *apiserver.ControlPlane) map[string]string {
	t.Helper()
	lists := lab.Must(lab.Must(discovery.NewDiscoveryClientForConfig(plane.Config)).ServerPreferredResources())
	all := map[string]string{}
	for _, list := range lists {
		for _, resource := range list.APIResources {
			if resource.Kind == "Event" || !strings.Contains(resource.Verbs.String(), "list") {
				continue
			}
			found := &unstructured.UnstructuredList{}
			found.SetGroupVersionKind(schema.FromAPIVersionAndKind(list.GroupVersion, resource.Kind+"List"))
			lab.NoError(t, client.IgnoreNotFound(plane.Client.List(t.Context(), found)))
			for i := range found.Items {
				object := &found.Items[i]
				texts := []string{string(lab.Must(json.Marshal(object.Object)))}
				data, _, _ := unstructured.NestedStringMap(object.Object, "data")
				if object.GetKind() == "Secret" {
					for _, value := range data {
						texts = append(texts, string(lab.Must(base64.StdEncoding.DecodeString(value))))
					}
				}
				all[object.GetKind()+" "+object.GetNamespace()+"/"+object.GetName()] = strings.Join(texts, "\n")
			}
		}
	}
	return all
}
