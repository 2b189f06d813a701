// Package v1beta2 is the custom resource Watcher. The reference for its users is
// docs/reference/watcher.md.
//
// The group and the kind come from [names.Names], and the version is v1beta2. The package depends
// only on k8s.io/apimachinery and registers nothing by itself: see [AddToScheme].
//
// +kubebuilder:object:generate=true
// +groupName=operator.kyma-project.io
package v1beta2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
)

// AddToScheme adds [Watcher] and [WatcherList] to a scheme, with the default names.
func AddToScheme(scheme *runtime.Scheme) error { return AddNamed(names.Names{})(scheme) }

// AddNamed returns a function that adds [Watcher] and [WatcherList] to a scheme with the group and
// the kind of an operator. It fails if the names are invalid. Add the types only once to a scheme,
// because a client cannot distinguish two kinds of one type.
func AddNamed(n names.Names) func(scheme *runtime.Scheme) error {
	return func(scheme *runtime.Scheme) error {
		if err := n.Validate(); err != nil {
			return err
		}
		kind := n.GroupVersionKind()
		list := kind.GroupVersion().WithKind(kind.Kind + "List")
		scheme.AddKnownTypeWithName(kind, &Watcher{})
		scheme.AddKnownTypeWithName(list, &WatcherList{})
		metav1.AddToGroupVersion(scheme, kind.GroupVersion())
		return nil
	}
}
