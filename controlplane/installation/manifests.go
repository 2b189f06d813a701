package installation

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/runtime-watcher/runtime-watcher/controlplane/config/agent"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/material"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
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

func (o Options) manifest(file string) *unstructured.Unstructured {
	text, err := fs.ReadFile(agent.Manifests(), file)
	if err == nil {
		text, err = yaml.ToJSON(text)
	}
	const namespace = `"namespace":"`
	rename := strings.NewReplacer(namespace+Name, namespace+o.Namespace, `"`+Name, `"`+o.Name)
	object := &unstructured.Unstructured{}
	if err == nil {
		err = object.UnmarshalJSON([]byte(rename.Replace(string(text))))
	}
	if err != nil {
		panic(fmt.Sprintf("manifest %s of this build: %v", file, err))
	}
	withoutMark(object)
	return object
}

// withoutMark removes the mark of the manifests, which are not installed by hand here.
func withoutMark(object *unstructured.Unstructured) {
	annotations := object.GetAnnotations()
	delete(annotations, names.Names{}.InstalledBy())
	object.SetAnnotations(annotations)
}

// manifests returns all manifests by path, with the names and the namespace of the options. The
// names of cluster-scoped objects are as unique in the runtime as that of the configuration.
func (o Options) manifests() map[string]*unstructured.Unstructured {
	all := map[string]*unstructured.Unstructured{namespaceFile: Options{Name: Name}.manifest(namespaceFile)}
	for _, file := range append(slices.Concat(files()...), deploymentFile) {
		all[file] = o.manifest(file)
	}
	all[namespaceFile].SetName(o.Namespace)
	o.nameClusterRole(all[roleFile], all[roleBindingFile], "-informer")
	o.nameClusterRole(all[webhooksRoleFile], all[webhooksBindingFile], "-webhooks")

	var role rbacv1.ClusterRole
	edit(all[webhooksRoleFile], &role, func() { role.Rules[0].ResourceNames = []string{o.ConfigurationName} })
	return all
}

func (o Options) nameClusterRole(role, binding *unstructured.Unstructured, suffix string) {
	name := o.ConfigurationName + suffix
	role.SetName(name)
	binding.SetName(name)
	binding.Object["roleRef"].(map[string]any)["name"] = name //nolint:errcheck // It is one.
}

func (i *Installer) object(file string) *unstructured.Unstructured {
	return i.manifests[file].DeepCopy()
}

func (o Options) labels() map[string]string {
	return map[string]string{"app.kubernetes.io/name": o.Name}
}

// key returns the label or annotation of a word, in the names of the operator.
func (i *Installer) key(word string) string { return i.opts.Names.Key(word) }

func (i *Installer) finished(object *unstructured.Unstructured) *unstructured.Unstructured {
	i.opts.Adjust(object)
	annotate(object, i.opts.Names.InstalledBy(), i.owner())
	return object
}

func (i *Installer) finishedOf(typed any) *unstructured.Unstructured {
	return i.finished(&unstructured.Unstructured{Object: content(typed)})
}

// namespace has annotations that mark it as made by this installer. Only then is it removed. The
// marks come before Adjust, which may remove them.
func (i *Installer) namespace() *unstructured.Unstructured {
	namespace := i.object(namespaceFile)
	namespace.SetAnnotations(map[string]string{
		i.key(annotationCreatedBy): createdBy, i.opts.Names.InstalledBy(): i.owner(),
	})
	i.opts.Adjust(namespace)
	return namespace
}

// add adds all objects except the namespace and the webhook configuration. due and pods are values
// of annotationRestart: the one of the ConfigMap, and the one of the pods, which may follow later.
func (w *wanted) add(i *Installer, r *Runtime, ownNamespace bool, due, pods string) {
	w.managers, w.deployment = i.managersMap(r, due), i.deployment(r, ownNamespace, pods)
	w.early = append(w.early, w.managers, i.secret(r))
	if r.PullSecret != nil {
		w.early = append(w.early, i.pullSecret(r))
	}
	for part, names := range files() {
		if part == partCanary && i.opts.NoCanary || part == partInformer && !i.opts.Informer {
			continue
		}
		for _, file := range names {
			object := i.filled(file, r)
			if strings.HasSuffix(object.GetKind(), "Binding") {
				w.late = append(w.late, object)
			} else {
				w.early = append(w.early, object)
			}
		}
	}
	for _, object := range w.applied() {
		annotate(object, i.key(annotationRuntime), string(r.ID))
	}
}

func (i *Installer) filled(file string, r *Runtime) *unstructured.Unstructured {
	object := i.object(file)
	switch file {
	case roleFile:
		var role rbacv1.ClusterRole
		edit(object, &role, func() { role.Rules = rulesOf(r.Watches) })
	case policyFile: // It opens the way to the control plane.
		var policy networkingv1.NetworkPolicy
		ports := i.opts.wayOut(i.addressFor(r))
		edit(object, &policy, func() {
			last := &policy.Spec.Egress[len(policy.Spec.Egress)-1]
			one := last.Ports[0]
			last.Ports = nil
			for _, port := range ports {
				one.Port = new(intstr.FromInt32(port))
				last.Ports = append(last.Ports, *one.DeepCopy())
			}
		})
	}
	return i.finished(object)
}

func (i *Installer) removable(part int) (objects []*unstructured.Unstructured) {
	for _, file := range slices.Backward(files()[part]) {
		objects = append(objects, i.object(file))
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

const (
	settingControlPlane = "CONTROL_PLANE_ADDRESS"
	settingContract     = "CONTROL_PLANE_CONTRACT"
	formerContract      = "KCP_CONTRACT"
	settingFallback     = "CONTRACT_FALLBACK"
	settingTransport    = "TRANSPORT"
	settingProxy        = "CONTROL_PLANE_PROXY"
	// settingHTTPSProxy is of the environment, as each program reads it.
	settingHTTPSProxy         = "HTTPS_PROXY"
	settingManagers           = "MANAGERS"
	settingManagersFile       = "MANAGERS_FILE"
	settingCanary             = "CANARY_LEASE"
	settingConfiguration      = "WEBHOOK_CONFIGURATION"
	settingSource             = "SOURCE"
	settingWatchers           = "WATCHERS"
	settingExcluded           = "EXCLUDED_NAMESPACES"
	settingOwner              = "OWNER_ANNOTATION"
	settingServingCertificate = "WEBHOOK_TLS_CERT"
	settingServingKey         = "WEBHOOK_TLS_KEY"
)

// formerSettings are other names of settings, which the agents of kyma-project/runtime-watcher
// have.
var formerSettings = map[string]string{
	"KCP_ADDR": settingControlPlane, formerContract: settingContract,
	"KCP_SERVER_NAME": "CONTROL_PLANE_SERVER_NAME", "KCP_PROTOCOL": "CONTROL_PLANE_PROTOCOL",
}

// reservedSettings belong to the manifests or to parameters.
func reservedSettings() map[string]bool {
	reserved := map[string]bool{
		settingControlPlane: true, settingManagersFile: true, settingCanary: true, settingConfiguration: true,
		settingSource: true, settingWatchers: true, settingExcluded: true, settingOwner: true,
		settingServingCertificate: true, settingServingKey: true,
	}
	for former, setting := range formerSettings {
		reserved[former] = reserved[setting]
	}
	var deployment appsv1.Deployment
	edit(Options{Name: Name}.manifest(deploymentFile), &deployment, func() {
		for _, variable := range deployment.Spec.Template.Spec.Containers[0].Env {
			reserved[variable.Name] = true
		}
	})
	return reserved
}

func (i *Installer) deployment(r *Runtime, ownNamespace bool, pods string) *unstructured.Unstructured {
	object := i.object(deploymentFile)
	var deployment appsv1.Deployment
	edit(object, &deployment, func() {
		deployment.Spec.Replicas = new(i.opts.Replicas)
		if pods != "" {
			deployment.Spec.Template.Annotations = map[string]string{i.key(annotationRestart): pods}
		}
		i.fillPod(&deployment.Spec.Template.Spec, r, ownNamespace)
	})
	return i.finished(object)
}

// informerMemory is the limit of config/agent/informer.
const informerMemory = "128Mi"

func (i *Installer) fillPod(pod *corev1.PodSpec, r *Runtime, ownNamespace bool) {
	pod.PriorityClassName = i.opts.PriorityClassName
	pod.AutomountServiceAccountToken = new(!i.opts.NoCanary || i.opts.Informer)
	pod.Volumes[0].Secret.SecretName = i.opts.secretName()
	secrets := i.opts.ImagePullSecrets
	if r.PullSecret != nil {
		secrets = append(slices.Clone(secrets), i.pullSecretName())
	}
	for _, name := range secrets {
		pod.ImagePullSecrets = append(pod.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	container := &pod.Containers[0]
	container.Image = i.image
	container.Env = append(container.Env, i.environment(r, container.VolumeMounts[0].MountPath, ownNamespace)...)
	if i.opts.Informer {
		container.Resources.Limits[corev1.ResourceMemory] = resource.MustParse(informerMemory)
	}
	if i.opts.Resources != nil {
		container.Resources = *i.opts.Resources.DeepCopy()
	}
	i.mountManagers(pod)
}

// environment is sorted: another order would restart the agents.
func (i *Installer) environment(r *Runtime, mount string, ownNamespace bool) []corev1.EnvVar {
	settings := make(map[string]string)
	maps.Copy(settings, i.opts.Settings)
	delete(settings, settingManagers) // They are in the file, with those of the watches.
	settings[settingControlPlane] = i.addressFor(r)
	settings[settingManagersFile] = path.Join(managersMount, managersKey)
	if owner := i.opts.Names.OwnerAnnotation; owner != core.OwnerAnnotation {
		settings[settingOwner] = owner
	}
	if !i.opts.NoCanary {
		settings[settingCanary] = i.opts.lease().String()
		settings[settingConfiguration] = i.opts.ConfigurationName
	}
	if i.opts.Informer {
		settings[settingSource] = "informer"
		settings[settingWatchers] = watchersSetting(r.Watches)
		settings[settingExcluded] = strings.Join(i.excludedNamespaces(ownNamespace), ",")
	}
	if r.hasServingPair() {
		settings[settingServingCertificate] = path.Join(mount, material.ServingCertificate)
		settings[settingServingKey] = path.Join(mount, material.ServingKey)
	}
	variables := make([]corev1.EnvVar, 0, len(settings))
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		// A '$' would begin a reference to another variable.
		variables = append(variables, corev1.EnvVar{Name: name, Value: strings.ReplaceAll(settings[name], "$", "$$")})
	}
	return variables
}

// rulesOf includes namespaces if a watch selects them by labels.
func rulesOf(watches []watch.Watch) []rbacv1.PolicyRule {
	var resources []schema.GroupResource
	for n := range watches {
		w := &watches[n]
		// The agent reports that a subresource cannot be watched.
		if !strings.Contains(w.Resource.Resource, "/") {
			resources = append(resources, schema.GroupResource{Group: w.Resource.Group, Resource: w.Resource.Resource})
		}
		if !w.NamespaceSelector.IsZero() {
			resources = append(resources, schema.GroupResource{Resource: "namespaces"})
		}
	}
	slices.SortFunc(resources, func(a, b schema.GroupResource) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Resource, b.Resource))
	})
	rules := []rbacv1.PolicyRule{} // Not null, so that an apply removes former rules.
	for _, r := range slices.Compact(resources) {
		rules = append(rules, rbacv1.PolicyRule{
			APIGroups: []string{r.Group}, Resources: []string{r.Resource}, Verbs: []string{"list", "watch"},
		})
	}
	return rules
}

// watchersSetting is the value of WATCHERS. Conditions need an API server.
func watchersSetting(watches []watch.Watch) string {
	watches = slices.Clone(watches)
	for n := range watches {
		watches[n].Conditions = nil
	}
	text, err := json.Marshal(watch.DocumentOf(watches))
	if err != nil {
		panic(fmt.Sprintf("watches: %v", err)) // Texts, and maps of texts.
	}
	return string(text)
}
