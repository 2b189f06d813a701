package today

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const kymas = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: kymas.operator.kyma-project.io}
spec:
  group: operator.kyma-project.io
  scope: Namespaced
  names: {kind: Kyma, listKind: KymaList, plural: kymas, singular: kyma}
  versions:
    - name: v1beta2
      served: true
      storage: true
      subresources: {status: {}}
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

const watchers = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: watchers.operator.kyma-project.io}
spec:
  group: operator.kyma-project.io
  scope: Namespaced
  names: {kind: Watcher, listKind: WatcherList, plural: watchers, singular: watcher}
  versions:
    - name: v1beta1
      served: %t
      storage: %t
      deprecated: true
      subresources: {status: {}}
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
    - name: v1beta2
      served: true
      storage: %t
      subresources: {status: {}}
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// Kymas returns the definition of Kymas, for runtimes and the control plane.
func Kymas() *unstructured.Unstructured { return objects(kymas)[0] }

// Watchers returns the definition of Watchers that stores v1beta1, or the newer one that stores
// v1beta2. When the newer one replaces the older one, both are among the stored versions.
func Watchers(newer bool) *unstructured.Unstructured {
	return objects(fmt.Sprintf(watchers, !newer, !newer, newer))[0]
}
