package lab

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

// Register creates the Kyma of a runtime, and the Secret with its kubeconfig, unless they exist.
func (l *Lab) Register(ctx context.Context, id string, labels map[string]string) error {
	kubeconfig, err := l.Runtimes[id].kubeconfig()
	if err != nil {
		return err
	}
	meta := metav1.ObjectMeta{Namespace: namespace, Name: id}
	secret := &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{skr.KubeconfigKey: kubeconfig}}
	if err := client.IgnoreAlreadyExists(l.Plane.Create(ctx, secret)); err != nil {
		return err
	}
	kyma := &v1beta2.Kyma{ObjectMeta: meta, Spec: v1beta2.KymaSpec{Channel: "regular"}}
	kyma.Labels = labels
	kyma.Annotations = map[string]string{controllerruntime.DomainAnnotation: id + ".example.com"}
	return client.IgnoreAlreadyExists(l.Plane.Create(ctx, kyma))
}

// Kubeconfig is the path of an administrator's kubeconfig.
func (r *Runtime) Kubeconfig() string { return r.plane.Kubeconfig }

// kubeconfig returns one that goes by the link.
func (r *Runtime) kubeconfig() ([]byte, error) {
	config, err := clientcmd.LoadFromFile(r.plane.Kubeconfig)
	if err != nil {
		return nil, err
	}
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + r.Address
	}
	return clientcmd.Write(*config)
}
