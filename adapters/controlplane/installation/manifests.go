package installation

import (
	"fmt"
	"io/fs"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/config/agent"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/internal/serverside"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// file is a manifest, and when it is there.
type file struct {
	path   string
	canary bool
}

// files are in the order in which they are applied, in the namespace: each object needs only those before it, and what calls the agent
// is not among them.
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

	settingControlPlane = "KCP_ADDR"
	settingManagers     = "MANAGERS"
	settingCanary       = "CANARY_LEASE"
)

// reservedSettings are those that belong to the manifests or to parameters.
func reservedSettings() map[string]bool {
	names := map[string]bool{settingControlPlane: true, settingCanary: true}

	for _, variable := range mustManifest[appsv1.Deployment]("deployment.yaml").Spec.Template.Spec.Containers[0].Env {
		names[variable.Name] = true
	}

	return names
}

// mustManifest reads a file that was compiled in, so that only a broken build can fail.
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

// namespace says who made it, so that it is removed by nobody else.
func (i *Installer) namespace() *unstructured.Unstructured {
	namespace := &unstructured.Unstructured{Object: *mustManifest[map[string]any]("namespace.yaml")}
	namespace.SetName(i.opts.Namespace)
	namespace.SetAnnotations(map[string]string{annotationCreatedBy: FieldOwner})
	i.opts.Adjust(namespace)

	return namespace
}

const (
	kindDeployment  = "Deployment"
	kindRoleBinding = "RoleBinding"
)

// objects are those to apply, in this order.
func (i *Installer) objects(r *Runtime) []*unstructured.Unstructured {
	objects := make([]*unstructured.Unstructured, 0, len(files())+1)

	for _, f := range files() {
		if f.canary && !i.opts.Canary {
			continue
		}

		object := i.object(f.path)

		switch {
		case object.GetKind() == kindDeployment:
			// Its pods would only wait without it.
			objects = append(objects, i.secret(r))
			i.fillDeployment(object, r)
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

func (i *Installer) fillDeployment(object *unstructured.Unstructured, r *Runtime) {
	var deployment appsv1.Deployment

	edit(object, &deployment, func() {
		pod := &deployment.Spec.Template.Spec
		container := &pod.Containers[0]

		deployment.Spec.Replicas = new(i.opts.Replicas)
		container.Image = i.image
		container.Env = append(container.Env, i.environment(r)...)
		pod.AutomountServiceAccountToken = new(i.opts.Canary)
	})
}

// environment is in the order of the names: else the agents would be restarted without reason.
func (i *Installer) environment(r *Runtime) []corev1.EnvVar {
	settings := map[string]string{settingManagers: strings.Join(managers(r.Watches), ",")}
	maps.Copy(settings, i.opts.Settings)
	settings[settingControlPlane] = i.controlPlane

	if i.opts.Canary {
		settings[settingCanary] = i.opts.lease().String()
	}

	variables := make([]corev1.EnvVar, 0, len(settings))
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		// A '$' would begin a reference to another variable.
		variables = append(variables, corev1.EnvVar{Name: name, Value: strings.ReplaceAll(settings[name], "$", "$$")})
	}

	return variables
}

// Managers returns those that the agents of a runtime with these watches speak to, sorted: those of the watches, and those that MANAGERS
// names in [Options.Settings].
func (i *Installer) Managers(watches []admission.Watch) []core.Manager {
	var all []core.Manager

	for name := range strings.SplitSeq(i.opts.Settings[settingManagers], ",") {
		if name = strings.TrimSpace(name); name != "" {
			all = append(all, core.Manager(name))
		}
	}

	for _, name := range managers(watches) {
		all = append(all, core.Manager(name))
	}

	slices.Sort(all)

	return slices.Compact(all)
}

func managers(watches []admission.Watch) []string {
	names := make([]string, 0, len(watches))
	for _, w := range watches {
		names = append(names, string(w.Manager))
	}

	slices.Sort(names)

	return slices.Compact(names)
}

func (i *Installer) fillRoleBinding(object *unstructured.Unstructured) {
	var binding rbacv1.RoleBinding

	edit(object, &binding, func() { binding.Subjects[0].Namespace = i.opts.Namespace })
}

// fillNetworkPolicy lets the agent reach the control plane at its port.
func (i *Installer) fillNetworkPolicy(object *unstructured.Unstructured) {
	var policy networkingv1.NetworkPolicy

	edit(object, &policy, func() {
		last := &policy.Spec.Egress[len(policy.Spec.Egress)-1]
		last.Ports[0].Port = new(intstr.FromInt32(i.port))
	})
}

// edit lets a typed object be changed. The types of a manifest are right: a test applies them all.
func edit(object *unstructured.Unstructured, typed any, change func()) {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
		panic(fmt.Sprintf("manifest of %s of this build: %v", object.GetKind(), err))
	}

	change()

	object.Object = content(typed)
}

// content is what is applied of an object that has a type of k8s.io/api.
func content(typed any) map[string]any {
	fields, err := serverside.Content(typed)
	if err != nil {
		panic(fmt.Sprintf("k8s.io/api: %v", err)) // Its types all can.
	}

	return fields
}

func (i *Installer) secret(r *Runtime) *unstructured.Unstructured {
	secret := &unstructured.Unstructured{Object: content(&corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: i.opts.Namespace, Name: SecretName, Labels: map[string]string{"app.kubernetes.io/name": Name},
		},
		Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{
			corev1.ServiceAccountRootCAKey: r.Secret[corev1.ServiceAccountRootCAKey],
			corev1.TLSCertKey:              r.Secret[corev1.TLSCertKey],
			corev1.TLSPrivateKeyKey:        r.Secret[corev1.TLSPrivateKeyKey],
		},
	})}
	i.opts.Adjust(secret)

	return secret
}

func (i *Installer) configuration(r *Runtime) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	opts := i.opts.Webhooks
	opts.Labels = maps.Clone(opts.Labels)

	if opts.Labels == nil {
		opts.Labels = map[string]string{"app.kubernetes.io/name": Name}
	}

	configuration, err := admission.WebhookConfiguration(i.opts.ConfigurationName, admission.Endpoint{
		Service:  types.NamespacedName{Namespace: i.opts.Namespace, Name: Name},
		CABundle: r.Secret[corev1.ServiceAccountRootCAKey],
	}, r.Watches, opts)
	if err != nil {
		return nil, fmt.Errorf("installation: runtime %q: %w", r.ID, err)
	}

	return configuration, nil
}

// parsePort wants <host>:<port>.
func parsePort(address string) (int32, error) {
	host, text, err := net.SplitHostPort(address)
	port, portErr := strconv.ParseUint(text, 10, 16)

	if err != nil || portErr != nil || host == "" || port == 0 {
		return 0, fmt.Errorf("address of the control plane: want <host>:<port>, have %.200q", address)
	}

	return int32(port), nil
}
