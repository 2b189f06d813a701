package installation

import (
	"fmt"
	"io/fs"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/runtime-watcher/runtime-watcher/controlplane/config/agent"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
)

// file is a manifest. Those of the canary are optional. Those that are late need others, which are
// not late.
type file struct {
	path         string
	canary, late bool
}

// files are in the reverse order of their removal. The webhook configuration is not among them.
func files() []file {
	return []file{
		{path: "serviceaccount.yaml"},
		{path: "networkpolicy.yaml"},
		{path: canaryPolicyFile, canary: true},
		{path: "canary/lease.yaml", canary: true},
		{path: "canary/role.yaml", canary: true},
		{path: "canary/rolebinding.yaml", canary: true, late: true},
		{path: "service.yaml"},
		{path: "poddisruptionbudget.yaml"},
		{path: deploymentFile, late: true},
	}
}

const (
	namespaceFile  = "namespace.yaml"
	deploymentFile = "deployment.yaml"
	policyFile     = "networkpolicy.yaml"
	// canaryPolicyFile opens the way to the API server.
	canaryPolicyFile = "canary/networkpolicy.yaml"
)

const (
	annotationCreatedBy = "operator.kyma-project.io/created-by"
	// createdBy is the value of annotationCreatedBy.
	createdBy = "runtime-watcher-installation"

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

// manifests returns all manifests by path, with the names and the namespace of the options.
func (o Options) manifests() map[string]*unstructured.Unstructured {
	all := map[string]*unstructured.Unstructured{
		namespaceFile: {Object: *mustManifest[map[string]any](namespaceFile)},
	}
	for _, f := range files() {
		manifest := &unstructured.Unstructured{Object: *mustManifest[map[string]any](f.path)}
		manifest.Object, _ = renamed(manifest.Object, o.Name).(map[string]any) // It stays one.
		manifest.SetNamespace(o.Namespace)
		all[f.path] = manifest
	}
	return all
}

// object returns a copy of a manifest.
func (i *Installer) object(path string) *unstructured.Unstructured {
	return i.manifests[path].DeepCopy()
}

// renamed returns a value with another name in all names and labels. It changes the value.
func renamed(value any, name string) any {
	switch value := value.(type) {
	case string:
		if rest, ok := strings.CutPrefix(value, Name); ok && (rest == "" || rest[0] == '-') {
			return name + rest
		}
	case []any:
		for n := range value {
			value[n] = renamed(value[n], name)
		}
	case map[string]any:
		for key := range value {
			value[key] = renamed(value[key], name)
		}
	}
	return value
}

// labels are those of every object.
func (i *Installer) labels() map[string]string {
	return map[string]string{"app.kubernetes.io/name": i.opts.Name}
}

// finished is the last step for each object of this installer.
func (i *Installer) finished(object *unstructured.Unstructured) *unstructured.Unstructured {
	i.opts.Adjust(object)
	i.own(object)
	return object
}

// namespace has an annotation that marks it as made by this package. Only then is it removed.
func (i *Installer) namespace() *unstructured.Unstructured {
	namespace := i.object(namespaceFile)
	namespace.SetName(i.opts.Namespace)
	namespace.SetAnnotations(map[string]string{annotationCreatedBy: createdBy})
	i.opts.Adjust(namespace)
	return namespace
}

// objects are all objects except the namespace and the webhook configuration. Those that are early
// need no other.
type objects struct {
	managers, secret *unstructured.Unstructured // managers is early, too
	early, late      []*unstructured.Unstructured
	deployment       *unstructured.Unstructured
}

func (i *Installer) objects(r *Runtime, have facts) objects {
	all := objects{managers: i.managersMap(r, have.restart), secret: i.secret(r)}
	all.early = append(all.early, all.managers)
	if r.PullSecret != nil {
		all.early = append(all.early, i.pullSecret(r))
	}
	if i.watches() {
		rights := i.informerObjects(r.Watches)
		all.early, all.late = append(all.early, rights.policy, rights.role), append(all.late, rights.binding)
	}
	for _, f := range files() {
		if f.canary && i.opts.NoCanary {
			continue
		}
		object := i.filled(f, r, have)
		switch {
		case f.path == deploymentFile:
			all.deployment = object
		case f.late:
			all.late = append(all.late, object)
		default:
			all.early = append(all.early, object)
		}
	}
	return all
}

// filled returns the object of a manifest as it is applied.
func (i *Installer) filled(f file, r *Runtime, have facts) *unstructured.Unstructured {
	object := i.object(f.path)
	switch {
	case object.GetKind() == kindDeployment:
		i.fillDeployment(object, r, have)
	case object.GetKind() == kindRoleBinding:
		var binding rbacv1.RoleBinding
		edit(object, &binding, func() { binding.Subjects[0].Namespace = i.opts.Namespace })
	case f.path == policyFile:
		i.fillNetworkPolicy(object, r)
	}
	return i.finished(object)
}

// fillNetworkPolicy opens the port of the control plane.
func (i *Installer) fillNetworkPolicy(object *unstructured.Unstructured, r *Runtime) {
	var policy networkingv1.NetworkPolicy
	port, _ := parsePort(i.addressFor(r)) // The address was validated.
	edit(object, &policy, func() {
		last := &policy.Spec.Egress[len(policy.Spec.Egress)-1]
		last.Ports[0].Port = new(intstr.FromInt32(port))
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
