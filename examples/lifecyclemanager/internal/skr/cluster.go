package skr

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
)

// KymaOf returns the name of another Kyma that has a cluster, empty if there is none. Kymas should
// be read without a cache.
func KymaOf(ctx context.Context, kymas client.Reader, cluster types.UID, except client.ObjectKey) (string, error) {
	list := &v1beta2.KymaList{}
	if err := kymas.List(ctx, list, client.InNamespace(except.Namespace)); err != nil {
		return "", err
	}

	for i := range list.Items {
		if other := &list.Items[i]; other.Name != except.Name && other.Status.Cluster == cluster {
			return other.Name, nil
		}
	}
	return "", nil
}
