package installation

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/runtime-watcher/runtime-watcher/controlplane/config/agent"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/material"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
)

// Name is the default name of the Deployment, the Service and the ServiceAccount, and of their
// namespace.
const Name = material.Name

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
		partBase: {"serviceaccount.yaml", policyFile},
		partCanary: {
			"canary/networkpolicy.yaml", "canary/lease.yaml", "canary/role.yaml", "canary/rolebinding.yaml",
			webhooksRoleFile, webhooksBindingFile,
		},
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
	// The agent compares its own webhooks. The role names the configuration.
	webhooksRoleFile    = "canary/clusterrole.yaml"
	webhooksBindingFile = "canary/clusterrolebinding.yaml"
)

// manifests are the objects of config/agent by path, with the names and the namespace of one
// installer. They are never changed.
type manifests map[string]*unstructured.Unstructured

// newManifests gives cluster-scoped objects names that begin with the name of the configuration,
// because they must also be unique in the runtime.
func newManifests(namespace, name, configuration string) manifests {
	all := make(manifests)
	for _, file := range append(slices.Concat(files()...), deploymentFile) {
		all[file] = readManifest(file, namespace, name)
	}

	all[namespaceFile] = readManifest(namespaceFile, "", Name)
	all[namespaceFile].SetName(namespace)

	nameClusterRole(all[roleFile], all[roleBindingFile], configuration+"-informer")
	nameClusterRole(all[webhooksRoleFile], all[webhooksBindingFile], configuration+"-webhooks")

	var role rbacv1.ClusterRole
	editAs(all[webhooksRoleFile], &role, func() {
		role.Rules[0].ResourceNames = []string{configuration}
	})
	return all
}

// readManifest panics if the manifest is wrong, which is a mistake of this build.
func readManifest(file, namespace, name string) *unstructured.Unstructured {
	object, err := parseManifest(file, namespace, name)
	if err != nil {
		panic(fmt.Sprintf("manifest %s of this build: %v", file, err))
	}
	return object
}

func parseManifest(file, namespace, name string) (*unstructured.Unstructured, error) {
	source, err := fs.ReadFile(agent.Manifests(), file)
	if err != nil {
		return nil, err
	}
	text, err := yaml.ToJSON(source)
	if err != nil {
		return nil, err
	}

	const inNamespace = `"namespace":"`
	const proxied = `"https:`
	rename := strings.NewReplacer(
		inNamespace+Name, inNamespace+namespace, `"`+Name, `"`+name, proxied+Name, proxied+name)
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON([]byte(rename.Replace(string(text)))); err != nil {
		return nil, err
	}

	removeMark(object)
	return object, nil
}

// removeMark removes the mark of the manifests, which are not installed by hand here.
func removeMark(object *unstructured.Unstructured) {
	annotations := object.GetAnnotations()
	delete(annotations, names.Names{}.InstalledBy())
	object.SetAnnotations(annotations)
}

func nameClusterRole(role, binding *unstructured.Unstructured, name string) {
	role.SetName(name)
	binding.SetName(name)
	binding.Object["roleRef"].(map[string]any)["name"] = name //nolint:errcheck // It is a map.
}

// copyOf returns an object that may be changed.
func (m manifests) copyOf(file string) *unstructured.Unstructured { return m[file].DeepCopy() }

// removable returns the objects of a part, in the order of their removal.
func (m manifests) removable(part int) (objects []*unstructured.Unstructured) {
	for _, file := range slices.Backward(files()[part]) {
		objects = append(objects, m.copyOf(file))
	}
	return objects
}

// settingsInManifests are the environment variables of the Deployment in config/agent.
func settingsInManifests() (all []string) {
	var deployment appsv1.Deployment
	editAs(readManifest(deploymentFile, "", Name), &deployment, func() {
		for _, variable := range deployment.Spec.Template.Spec.Containers[0].Env {
			all = append(all, variable.Name)
		}
	})
	return all
}
