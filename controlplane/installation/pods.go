package installation

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/material"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// informerMemory is the limit of config/agent/informer.
const informerMemory = "128Mi"

// renderDeployment makes the Deployment. restart is the value of annotationRestart on its pods.
func (r *renderer) renderDeployment(restart string) *unstructured.Unstructured {
	object := r.manifests.copyOf(deploymentFile)

	var deployment appsv1.Deployment
	editAs(object, &deployment, func() {
		deployment.Spec.Replicas = new(r.opts.Replicas)
		if r.opts.HostNetwork { // A second pod on the same node would find the ports taken.
			deployment.Spec.Strategy.RollingUpdate.MaxSurge = new(intstr.FromInt32(0))
			deployment.Spec.Strategy.RollingUpdate.MaxUnavailable = new(intstr.FromInt32(1))
		}
		if restart != "" {
			deployment.Spec.Template.Annotations = map[string]string{r.opts.key(annotationRestart): restart}
		}
		r.fillPod(&deployment.Spec.Template.Spec)
	})

	return r.finishObject(object)
}

func (r *renderer) fillPod(pod *corev1.PodSpec) {
	pod.PriorityClassName = r.opts.PriorityClassName
	pod.AutomountServiceAccountToken = new(!r.opts.NoCanary || r.opts.Informer)
	if r.opts.HostNetwork {
		pod.HostNetwork = true
		pod.DNSPolicy = corev1.DNSClusterFirstWithHostNet
	}
	pod.Volumes[0].Secret.SecretName = r.opts.secretName()
	pod.ImagePullSecrets = append(pod.ImagePullSecrets, r.imagePullSecrets()...)

	container := &pod.Containers[0]
	container.Image = r.image
	r.opts.setPorts(container)
	container.Env = append(container.Env, r.renderEnvironment(container.VolumeMounts[0].MountPath)...)
	if r.opts.Informer {
		container.Resources.Limits[corev1.ResourceMemory] = resource.MustParse(informerMemory)
	}
	if r.opts.Resources != nil {
		container.Resources = *r.opts.Resources.DeepCopy()
	}

	r.mountManagers(pod)
}

// setPorts changes the ports of the manifests, and the settings of the agent with them.
func (o Options) setPorts(container *corev1.Container) {
	numbers := map[string]int32{"webhook": o.WebhookPort, "metrics": o.MetricsPort}
	for n := range container.Ports {
		port := &container.Ports[n]
		port.ContainerPort = numbers[port.Name]
		setting := strings.ToUpper(port.Name) + "_PORT"

		for n := range container.Env {
			if container.Env[n].Name == setting {
				container.Env[n].Value = strconv.Itoa(int(port.ContainerPort))
			}
		}
	}
}

func (r *renderer) imagePullSecrets() (references []corev1.LocalObjectReference) {
	for _, name := range r.opts.ImagePullSecrets {
		references = append(references, corev1.LocalObjectReference{Name: name})
	}
	if r.runtime.PullSecret != nil {
		references = append(references, corev1.LocalObjectReference{Name: r.opts.pullSecretName()})
	}
	return references
}

// mountManagers mounts the whole folder, as a mount with subPath is never updated.
func (r *renderer) mountManagers(pod *corev1.PodSpec) {
	container := &pod.Containers[0]
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{
		Name: managersKey, MountPath: managersMount, ReadOnly: true,
	})

	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: managersKey, VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: r.opts.managersName()},
		},
	}})
}

// renderEnvironment returns sorted variables, because another order would restart the agents. mount
// is the folder of the keys.
func (r *renderer) renderEnvironment(mount string) []corev1.EnvVar {
	variables := maps.Clone(r.opts.Settings)
	if variables == nil {
		variables = make(map[string]string)
	}
	delete(variables, settingManagers) // They are in the file, with the managers of the watches.

	variables[settingControlPlane] = r.address
	variables[settingManagersFile] = path.Join(managersMount, managersKey)
	if owner := r.names.OwnerAnnotation; owner != core.OwnerAnnotation {
		variables[settingOwner] = owner
	}
	if !r.opts.NoCanary {
		variables[settingCanary] = r.opts.lease().String()
		variables[settingConfiguration] = r.opts.ConfigurationName
	}
	if r.opts.Informer {
		variables[settingSource] = "informer"
		variables[settingWatchers] = watchersSetting(r.runtime.Watches)
		variables[settingExcluded] = strings.Join(r.opts.excludedNamespaces(r.ownNamespace), ",")
	}
	if r.runtime.hasServingPair() {
		variables[settingServingCertificate] = path.Join(mount, material.ServingCertificate)
		variables[settingServingKey] = path.Join(mount, material.ServingKey)
	}
	if r.runtime.ProxyCredentials != nil {
		variables[settingProxyCredentials] = path.Join(mount, proxyCredentialsKey)
	}

	sorted := make([]corev1.EnvVar, 0, len(variables))
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		// A '$' would begin a reference to another variable.
		value := strings.ReplaceAll(variables[name], "$", "$$")
		sorted = append(sorted, corev1.EnvVar{Name: name, Value: value})
	}
	return sorted
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
