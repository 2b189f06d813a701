package installation

import (
	"maps"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/material"
)

// Settings of the agent that this package sets.
const (
	settingControlPlane       = "KCP_ADDR"
	settingContract           = "KCP_CONTRACT"
	settingFallback           = "CONTRACT_FALLBACK"
	settingTransport          = "TRANSPORT"
	settingManagers           = "MANAGERS"
	settingManagersFile       = "MANAGERS_FILE"
	settingCanary             = "CANARY_LEASE"
	settingSource             = "SOURCE"
	settingWatchers           = "WATCHERS"
	settingExcluded           = "EXCLUDED_NAMESPACES"
	settingServingCertificate = "WEBHOOK_TLS_CERT"
	settingServingKey         = "WEBHOOK_TLS_KEY"
)

// reservedSettings belong to the manifests or to parameters.
func reservedSettings() map[string]bool {
	names := map[string]bool{
		settingControlPlane: true, settingManagersFile: true, settingCanary: true,
		settingSource: true, settingWatchers: true, settingExcluded: true,
		settingServingCertificate: true, settingServingKey: true,
	}
	for _, variable := range mustManifest[appsv1.Deployment](deploymentFile).Spec.Template.Spec.Containers[0].Env {
		names[variable.Name] = true
	}
	return names
}

func (i *Installer) deployment(r *Runtime, have facts) *unstructured.Unstructured {
	object := i.object(deploymentFile)
	var deployment appsv1.Deployment
	edit(object, &deployment, func() {
		deployment.Spec.Replicas = new(i.opts.Replicas)
		if have.restart != "" {
			deployment.Spec.Template.Annotations = map[string]string{annotationRestart: have.restart}
		}
		i.fillPod(&deployment.Spec.Template.Spec, r, have.ownNamespace)
	})
	return i.finished(object)
}

func (i *Installer) fillPod(pod *corev1.PodSpec, r *Runtime, ownNamespace bool) {
	pod.PriorityClassName = i.opts.PriorityClassName
	pod.AutomountServiceAccountToken = new(!i.opts.NoCanary || i.opts.Informer)
	pod.Volumes[0].Secret.SecretName = i.opts.secretName()
	names := i.opts.ImagePullSecrets
	if r.PullSecret != nil {
		names = append(slices.Clone(names), i.pullSecretName())
	}
	for _, name := range names {
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

// environment is sorted by name: another order would restart the agents. The Secret is mounted at
// mount.
func (i *Installer) environment(r *Runtime, mount string, ownNamespace bool) []corev1.EnvVar {
	settings := make(map[string]string)
	maps.Copy(settings, i.opts.Settings)
	delete(settings, settingManagers) // They are in the file, with those of the watches.
	settings[settingControlPlane] = i.addressFor(r)
	settings[settingManagersFile] = path.Join(managersMount, managersKey)
	if !i.opts.NoCanary {
		settings[settingCanary] = i.opts.lease().String()
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
