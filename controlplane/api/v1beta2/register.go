package v1beta2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion returns the group and version of this package's types.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "operator.kyma-project.io", Version: "v1beta2"}
}

// AddToScheme adds [Watcher] and [WatcherList] to a scheme. It never fails.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion(), &Watcher{}, &WatcherList{})
	metav1.AddToGroupVersion(scheme, GroupVersion())
	return nil
}
