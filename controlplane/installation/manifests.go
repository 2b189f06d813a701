package installation

import (
	"fmt"
	"io/fs"
	"slices"
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

// The parts of the manifests, in the reverse order of their removal.
const (
	partBase = iota
	partCanary
	partService
	partInformer
)

// files are the manifests of each part, in the reverse order of their removal. The role of an
// informer comes last then, as it shows that the others may be there.
func files() [][]string {
	return [][]string{
		partBase:     {"serviceaccount.yaml", policyFile},
		partCanary:   {"canary/networkpolicy.yaml", "canary/lease.yaml", "canary/role.yaml", "canary/rolebinding.yaml"},
		partService:  {"service.yaml", "poddisruptionbudget.yaml"},
		partInformer: {roleFile, "informer/networkpolicy.yaml", roleBindingFile},
	}
}

const (
	namespaceFile   = "namespace.yaml"
	deploymentFile  = "deployment.yaml"
	policyFile      = "networkpolicy.yaml"
	roleFile        = "informer/clusterrole.yaml"
	roleBindingFile = "informer/clusterrolebinding.yaml"
)

const (
	annotationCreatedBy = "operator.kyma-project.io/created-by"
	// createdBy is the value of annotationCreatedBy.
	createdBy = "runtime-watcher-installation"
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

// manifests returns all manifests by path, with the names and the namespace of the options. The
// names of cluster-scoped objects are as unique in the runtime as that of the configuration.
func (o Options) manifests() map[string]*unstructured.Unstructured {
	all := map[string]*unstructured.Unstructured{
		namespaceFile: {Object: *mustManifest[map[string]any](namespaceFile)},
	}
	for _, path := range append(slices.Concat(files()...), deploymentFile) {
		content, _ := o.renamed("", *mustManifest[map[string]any](path)).(map[string]any) // It stays one.
		all[path] = &unstructured.Unstructured{Object: content}
	}
	all[namespaceFile].SetName(o.Namespace)
	role := o.ConfigurationName + "-informer"
	all[roleFile].SetName(role)
	all[roleBindingFile].SetName(role)
	all[roleBindingFile].Object["roleRef"].(map[string]any)["name"] = role //nolint:errcheck // It is one.
	return all
}

// object returns a copy of a manifest.
func (i *Installer) object(path string) *unstructured.Unstructured {
	return i.manifests[path].DeepCopy()
}

// renamed returns the value of a field with another name in all names and labels, and another
// namespace. It changes the value.
func (o Options) renamed(field string, value any) any {
	switch value := value.(type) {
	case string:
		rest, ok := strings.CutPrefix(value, Name)
		if ok && field == "namespace" {
			return o.Namespace
		}
		if ok && (rest == "" || rest[0] == '-') {
			return o.Name + rest
		}
	case []any:
		for n := range value {
			value[n] = o.renamed("", value[n])
		}
	case map[string]any:
		for key := range value {
			value[key] = o.renamed(key, value[key])
		}
	}
	return value
}

// labels are those of every object.
func (o Options) labels() map[string]string {
	return map[string]string{"app.kubernetes.io/name": o.Name}
}

// finished is the last step for each object of this installer.
func (i *Installer) finished(object *unstructured.Unstructured) *unstructured.Unstructured {
	i.opts.Adjust(object)
	annotate(object, annotationInstalledBy, i.owner())
	return object
}

// finishedOf is finished for an object of k8s.io/api.
func (i *Installer) finishedOf(typed any) *unstructured.Unstructured {
	return i.finished(&unstructured.Unstructured{Object: content(typed)})
}

// namespace has an annotation that marks it as made by this package. Only then is it removed.
func (i *Installer) namespace() *unstructured.Unstructured {
	namespace := i.object(namespaceFile)
	namespace.SetAnnotations(map[string]string{annotationCreatedBy: createdBy})
	i.opts.Adjust(namespace)
	return namespace
}

// ours reports whether this package has made a namespace, which is nil if there is none.
func ours(namespace *unstructured.Unstructured) bool {
	return namespace != nil && namespace.GetAnnotations()[annotationCreatedBy] == createdBy
}

// objects are all objects except the namespace and the webhook configuration. Those that are early
// need no other.
type objects struct {
	managers, secret *unstructured.Unstructured // managers is early, too
	early, late      []*unstructured.Unstructured
	deployment       *unstructured.Unstructured
}

func (i *Installer) objects(r *Runtime, have facts) objects {
	all := objects{managers: i.managersMap(r, have.restart), secret: i.secret(r), deployment: i.deployment(r, have)}
	all.early = append(all.early, all.managers)
	if r.PullSecret != nil {
		all.early = append(all.early, i.pullSecret(r))
	}
	for part, paths := range files() {
		if part == partCanary && i.opts.NoCanary || part == partInformer && !i.opts.Informer {
			continue
		}
		for _, path := range paths {
			object := i.filled(path, r)
			if strings.HasSuffix(object.GetKind(), "Binding") {
				all.late = append(all.late, object)
			} else {
				all.early = append(all.early, object)
			}
		}
	}
	return all
}

// filled returns the object of a manifest as it is applied.
func (i *Installer) filled(path string, r *Runtime) *unstructured.Unstructured {
	object := i.object(path)
	switch path {
	case roleFile:
		var role rbacv1.ClusterRole
		edit(object, &role, func() { role.Rules = rulesOf(r.Watches) })
	case policyFile: // It opens the port of the control plane.
		var policy networkingv1.NetworkPolicy
		port, _ := parsePort(i.addressFor(r)) // The address was validated.
		edit(object, &policy, func() {
			last := &policy.Spec.Egress[len(policy.Spec.Egress)-1]
			last.Ports[0].Port = new(intstr.FromInt32(port))
		})
	}
	return i.finished(object)
}

// removable returns the objects of a part, in the order of their removal.
func (i *Installer) removable(part int) (objects []*unstructured.Unstructured) {
	for _, path := range slices.Backward(files()[part]) {
		objects = append(objects, i.object(path))
	}
	return objects
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
