package manifest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote/remotetest"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/manifest"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// The attacks on any program, for a reconcile that applies the objects of a module, and for the lists before a
// Namespace of a module is removed. A new client also learns the kinds of the cluster.
func TestAttacksOnAModule(t *testing.T) {
	remotetest.Run(t, func(t *testing.T, server *remotetest.Server) func(context.Context) error {
		t.Helper()
		w := newHostileWorld(t, server)
		return func(ctx context.Context) error {
			_, err := w.reconciler.Reconcile(ctx, ctrl.Request{NamespacedName: key("m")})
			there, connected := skr.NewConnections(w.Client, w.Scheme()).Get(ctx, key("runtime-1"))
			if connected != nil {
				return errors.Join(err, connected)
			}
			_, listed := installation.FindGuest(ctx, there.Client, "default", nil)
			return errors.Join(err, listed)
		}
	})
}

// newHostileWorld returns an operator with the Manifest of a module in the cluster of a server. The control plane
// is in memory.
func newHostileWorld(t *testing.T, server *remotetest.Server) *world {
	t.Helper()
	const cluster = "cluster-1"
	server.Put("/api", metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	server.Put("/apis", metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}})
	server.Put("/api/v1", metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList"}, GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "namespaces", Kind: "Namespace"},
			{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: metav1.Verbs{"get", "list", "delete"}},
		},
	})
	server.Put("/api/v1/namespaces/kube-system", corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{Kind: "Namespace", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: cluster},
	})

	scheme := runtime.NewScheme()
	lab.NoError(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1beta2.AddToScheme(scheme)))
	kyma := &v1beta2.Kyma{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "runtime-1", UID: "kyma-1"}}
	kyma.Status.Cluster = cluster
	template := &v1beta2.ModuleTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "module-1", UID: "template-1", Generation: 1},
		Spec: v1beta2.ModuleTemplateSpec{
			Module: "module", Version: "1", Resources: resources(t, configMap("one"), configMap("two")),
		},
	}
	module := &v1beta2.Manifest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "m", UID: "manifest-1", Labels: map[string]string{v1beta2.KymaLabel: "runtime-1"},
		},
		Spec: v1beta2.ManifestSpec{Module: "module", Version: "1", Template: v1beta2.TemplateRef{
			Name: template.Name, UID: template.UID, Generation: template.Generation,
		}},
	}
	plane := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(module, kyma).
		WithObjects(kyma, template, module, &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "control-plane"},
		}, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "runtime-1"},
			Data:       map[string][]byte{skr.KubeconfigKey: server.Kubeconfig()},
		}).Build()
	connections := skr.NewConnections(plane, scheme)
	return &world{Client: plane, t: t, reconciler: &manifest.Reconciler{Clusters: skr.Clusters{
		Client: plane, Direct: plane,
		Connect: func(ctx context.Context, _, kyma client.ObjectKey) (*skr.Runtime, error) {
			return connections.Get(ctx, kyma)
		},
		RequeueAfter: func(core.RuntimeID) time.Duration { return time.Hour },
	}}}
}
