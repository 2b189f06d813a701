package remote_test

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
)

// podRequest names an object of a cluster.
type podRequest struct {
	Cluster string
	Pod     client.ObjectKey
}

// setUp is an operator of pods in clusters, whose requests are not one per cluster. events is the
// source of these requests, such as controllerruntime.Source.
func setUp(mgr ctrl.Manager, events source.TypedSource[podRequest]) error {
	connect := remote.NewKubeconfigs(mgr.GetAPIReader(), "kubeconfig", client.ObjectKeyFromObject,
		remote.KubeconfigOptions{Scheme: mgr.GetScheme()})
	pods := reconcile.TypedFunc[podRequest](func(ctx context.Context, r podRequest) (reconcile.Result, error) {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: r.Cluster}}
		there, err := connect(ctx, secret)
		if err != nil {
			return reconcile.Result{}, err
		}
		pod := &corev1.Pod{}
		return reconcile.Result{}, client.IgnoreNotFound(there.Get(ctx, r.Pod, pod)) // And the work.
	})

	lanes := remote.NewLanes(func(r podRequest) string { return r.Cluster }, pods, remote.LanesOptions[podRequest]{})
	return errors.Join(
		lanes.SetUpSlow(mgr, "pods"),
		builder.TypedControllerManagedBy[podRequest](mgr).Named("pods").
			WatchesRawSource(events).
			WatchesRawSource(lanes.Regular).
			Complete(lanes.Regular))
}

// An operator of its own with the bounds of this package: setUp in this file has the controllers.
func ExampleNewKubeconfigs() {
	_ = setUp
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "east"},
		Data:       map[string][]byte{"value": []byte("apiVersion: v1\nclusters: [{name: a}]")},
	}
	connect := remote.NewKubeconfigs(fake.NewClientBuilder().WithObjects(secret).Build(), "kubeconfig",
		client.ObjectKeyFromObject, remote.KubeconfigOptions{})
	_, err := connect(context.Background(), secret)
	fmt.Println(err)
	// Output:
	// invalid kubeconfig in Secret clusters/east: want a kubeconfig under the key "kubeconfig"; the Secret has the keys "value", of which "value" has a kubeconfig
}
