package paths_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// objects is the number of runtimes that the control plane has registered.
const objects = 10_000

func kymaKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

// newRuntimes returns the registered runtimes in a cache of controller-runtime with its informer and
// its indexes.
func newRuntimes(b *testing.B) *controllerruntime.Runtimes {
	b.Helper()
	ca := lab.Must(testpki.NewCA("ca", testpki.Options{}))
	servers := kit.StartServers(b, ca)
	store := servers.Add("control-plane", kymaKind(), "kymas")
	for i := range objects {
		name := kit.RuntimeName(i)
		store.Put(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: "kcp-system", Name: name, Labels: map[string]string{"kyma-project.io/runtime-id": name},
			Annotations: map[string]string{controllerruntime.DomainAnnotation: lab.RuntimeDomain(core.RuntimeID(name))},
		}})
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(kymaKind(), meta.RESTScopeNamespace)
	config := &rest.Config{Host: servers.URL + "/control-plane", TLSClientConfig: rest.TLSClientConfig{CAData: ca.PEM}}
	kymas := lab.Must(cache.New(config, cache.Options{Mapper: mapper, Scheme: runtime.NewScheme()}))
	runtimes := lab.Must(controllerruntime.NewRuntimes(b.Context(), kymas, kymaKind(), controllerruntime.ByName,
		controllerruntime.RuntimesOptions{}))
	go func() { _ = kymas.Start(b.Context()) }()
	if !kymas.WaitForCacheSync(b.Context()) {
		b.Fatal("the cache does not sync")
	}
	return runtimes
}
