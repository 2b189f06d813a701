package v1beta2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group and Version are those of the API, and Kind is that of a [Watcher].
const (
	Group   = "operator.kyma-project.io"
	Version = "v1beta2"
	Kind    = "Watcher"
)

// GroupVersion returns the group and version of this package's types.
func GroupVersion() schema.GroupVersion { return schema.GroupVersion{Group: Group, Version: Version} }

// AddToScheme makes a scheme know [Watcher] and [WatcherList]. It never fails; its form is that of all AddToScheme functions.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion(), &Watcher{}, &WatcherList{})
	metav1.AddToGroupVersion(scheme, GroupVersion())

	return nil
}
