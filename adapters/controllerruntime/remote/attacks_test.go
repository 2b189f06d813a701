package remote_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote/remotetest"
)

// The attacks on an importer's own operator, which lists and writes typed objects.
func TestAttacksOnAnOperator(t *testing.T) {
	remotetest.Run(t, func(t *testing.T, server *remotetest.Server) func(context.Context) error {
		t.Helper()

		server.Put("/api/v1/namespaces/default/configmaps/x", map[string]any{
			"kind": "ConfigMap", "apiVersion": "v1", "metadata": map[string]any{"name": "x", "namespace": "default"},
		})
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
			Data:       map[string][]byte{"config": server.Kubeconfig()},
		}
		known := meta.NewDefaultRESTMapper(nil)
		known.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
		connect := remote.NewKubeconfigs(fake.NewClientBuilder().WithObjects(secret).Build(), "config",
			client.ObjectKeyFromObject, remote.KubeconfigOptions{
				Scheme: scheme.Scheme, Mapper: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return known, nil },
			})
		lanes := remote.NewLanes(clusterOf, reconcile.TypedFunc[string](func(ctx context.Context, _ string) (reconcile.Result, error) {
			there, err := connect(ctx, secret)
			if err != nil {
				return reconcile.Result{}, err
			}

			listed := there.List(ctx, &corev1.ConfigMapList{}, client.Limit(100))
			object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"}}
			read := there.Get(ctx, client.ObjectKeyFromObject(object), object)
			return reconcile.Result{}, errors.Join(listed, read, there.Update(ctx, object))
		}), remote.LanesOptions[string]{})
		return func(ctx context.Context) error {
			_, err := lanes.Regular.Reconcile(ctx, "a/x")
			return err
		}
	})
}
