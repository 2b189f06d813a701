package installation

import (
	"fmt"
	"io/fs"

	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/config/agent"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/internal/serverside"
)

// file is a manifest. Those of the canary are optional.
type file struct {
	path   string
	canary bool
}

// files are in the order in which they are applied: each object needs only those before it. The
// webhook configuration is not among them.
func files() []file {
	return []file{
		{path: "serviceaccount.yaml"},
		{path: "networkpolicy.yaml"},
		{path: "canary/networkpolicy.yaml", canary: true},
		{path: "canary/lease.yaml", canary: true},
		{path: "canary/role.yaml", canary: true},
		{path: "canary/rolebinding.yaml", canary: true},
		{path: "service.yaml"},
		{path: "poddisruptionbudget.yaml"},
		{path: "deployment.yaml"},
	}
}

const (
	annotationCreatedBy = "operator.kyma-project.io/created-by"

	kindDeployment  = "Deployment"
	kindRoleBinding = "RoleBinding"
)

// mustManifest reads an embedded file. It panics if this build is broken.
func mustManifest[T any](path string) *T {
	text, err := fs.ReadFile(agent.Manifests(), path)
	object := new(T)
	if err == nil {
		err = yaml.Unmarshal(text, object)
	}
	if err != nil {
		panic(fmt.Sprintf("manifest %s of this build: %v", path, err))
	}
	return object
}

// object reads a manifest into the namespace of the installation.
func (i *Installer) object(path string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: *mustManifest[map[string]any](path)}
	object.SetNamespace(i.opts.Namespace)
	return object
}

// namespace has an annotation that marks it as made by this package. Only then is it removed.
func (i *Installer) namespace() *unstructured.Unstructured {
	namespace := &unstructured.Unstructured{Object: *mustManifest[map[string]any]("namespace.yaml")}
	namespace.SetName(i.opts.Namespace)
	namespace.SetAnnotations(map[string]string{annotationCreatedBy: fieldOwner})
	i.opts.Adjust(namespace)
	return namespace
}

// objects are the objects to apply, in this order. A namespace that this package has not made may
// hold objects to watch.
func (i *Installer) objects(r *Runtime, ownNamespace bool) []*unstructured.Unstructured {
	objects := make([]*unstructured.Unstructured, 0, len(files())+1)
	if i.watches() {
		objects = append(objects, i.informerObjects(r.Watches)...)
	}

	for _, f := range files() {
		if f.canary && i.opts.NoCanary {
			continue
		}

		object := i.object(f.path)

		switch {
		case object.GetKind() == kindDeployment:
			// The pods cannot start without the Secret.
			objects = append(objects, i.secret(r))
			i.fillDeployment(object, r, ownNamespace)
		case object.GetKind() == kindRoleBinding:
			i.fillRoleBinding(object)
		case f.path == "networkpolicy.yaml":
			i.fillNetworkPolicy(object)
		}

		i.opts.Adjust(object)
		objects = append(objects, object)
	}
	return objects
}

func (i *Installer) fillRoleBinding(object *unstructured.Unstructured) {
	var binding rbacv1.RoleBinding
	edit(object, &binding, func() { binding.Subjects[0].Namespace = i.opts.Namespace })
}

// fillNetworkPolicy opens the port of the control plane.
func (i *Installer) fillNetworkPolicy(object *unstructured.Unstructured) {
	var policy networkingv1.NetworkPolicy
	edit(object, &policy, func() {
		last := &policy.Spec.Egress[len(policy.Spec.Egress)-1]
		last.Ports[0].Port = new(intstr.FromInt32(i.port))
	})
}

// edit changes an object as its type. It panics if a manifest of this build has another type.
func edit(object *unstructured.Unstructured, typed any, change func()) {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
		panic(fmt.Sprintf("manifest of %s of this build: %v", object.GetKind(), err))
	}
	change()
	object.Object = content(typed)
}

// content converts an object of k8s.io/api to a map without its status.
func content(typed any) map[string]any {
	fields, err := serverside.Content(typed)
	if err != nil {
		panic(fmt.Sprintf("k8s.io/api: %v", err)) // All of its types can be converted.
	}
	return fields
}
