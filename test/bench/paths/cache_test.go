package paths_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// objects is the number of runtimes that the control plane has registered.
const objects = 10_000

func kymaKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

// newRuntimes returns the registered runtimes in a cache of controller-runtime with its informer and
// its indexes. Only the answer to the list of the informer is made here.
func newRuntimes(b *testing.B) *controllerruntime.Runtimes {
	b.Helper()
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(kymaKind(), meta.RESTScopeNamespace)
	kymas := lab.Must(cache.New(&rest.Config{Host: "http://localhost:0"}, cache.Options{
		HTTPClient: &http.Client{Timeout: time.Second}, Mapper: mapper, Scheme: runtime.NewScheme(), NewInformer: newInformer,
	}))
	runtimes := lab.Must(controllerruntime.NewRuntimes(b.Context(), kymas, kymaKind(), controllerruntime.ByName,
		controllerruntime.RuntimesOptions{}))
	go func() { _ = kymas.Start(b.Context()) }()
	if !kymas.WaitForCacheSync(b.Context()) {
		b.Fatal("the cache does not sync")
	}
	return runtimes
}

// newInformer returns an informer with a list of its own, and a watch without events.
func newInformer(
	_ toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers,
) toolscache.SharedIndexInformer {
	source := &toolscache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) { return list(), nil },
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			return watch.NewFake(), nil
		},
	}
	return toolscache.NewSharedIndexInformer(toolscache.ToListWatcherWithWatchListSemantics(source, noWatchList{}),
		object, resync, indexers)
}

// noWatchList makes an informer list and then watch.
type noWatchList struct{}

func (noWatchList) IsWatchListSemanticsUnSupported() bool { return true }

func list() *metav1.PartialObjectMetadataList {
	all := &metav1.PartialObjectMetadataList{Items: make([]metav1.PartialObjectMetadata, objects)}
	for i := range all.Items {
		kyma := &all.Items[i]
		kyma.SetGroupVersionKind(kymaKind())
		kyma.Namespace, kyma.Name = "kcp-system", kit.RuntimeName(i)
		kyma.Labels = map[string]string{"kyma-project.io/runtime-id": kit.RuntimeName(i)}
		kyma.Annotations = map[string]string{controllerruntime.DomainAnnotation: lab.RuntimeDomain(core.RuntimeID(kyma.Name))}
	}
	return all
}
