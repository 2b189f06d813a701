package installation

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

const (
	// managersKey is the key of the ConfigMap, and the name of the file.
	managersKey   = "managers"
	managersMount = "/etc/runtime-watcher/managers"
)

// Managers returns the managers that the agents of a runtime send to, sorted: those of the watches,
// and those of MANAGERS in [Options.Settings].
func (i *Installer) Managers(watches []watch.Watch) []core.Manager {
	managers := i.opts.managers()
	for _, watch := range watches {
		managers = append(managers, watch.Manager)
	}
	slices.Sort(managers)
	return slices.Compact(managers)
}

func (o Options) managers() (managers []core.Manager) {
	for name := range strings.SplitSeq(o.Settings[settingManagers], ",") {
		if name = strings.TrimSpace(name); name != "" {
			managers = append(managers, core.Manager(name))
		}
	}
	return managers
}

// managersMap has one manager per line. Agents read it again, so a new one restarts nothing.
func (i *Installer) managersMap(r *Runtime, restart string) *unstructured.Unstructured {
	var lines strings.Builder
	for _, manager := range i.Managers(r.Watches) {
		lines.WriteString(string(manager) + "\n")
	}
	config := named("v1", "ConfigMap", i.opts.Namespace, i.opts.managersName())
	config.SetLabels(i.opts.labels())
	config.Object["data"] = map[string]any{managersKey: lines.String()}
	annotate(config, i.key(annotationRuntime), string(r.ID))
	if restart != "" {
		annotate(config, i.key(annotationRestart), restart)
	}
	if r.PullSecret != nil {
		annotate(config, i.key(annotationPullSecret), i.pullSecretName())
	}
	return i.finished(config)
}

func shortSum(sum [sha256.Size]byte) string {
	const digits = 10
	return hex.EncodeToString(sum[:])[:digits]
}

// formerManagers returns the managers of a ConfigMap that a runtime does not have any more. live is
// nil if there is no ConfigMap.
func (i *Installer) formerManagers(r *Runtime, live *unstructured.Unstructured) []core.Manager {
	if live == nil {
		return nil
	}
	text, _, _ := unstructured.NestedString(live.Object, "data", managersKey)
	now := i.Managers(r.Watches)
	return slices.DeleteFunc(remote.Managers(strings.FieldsSeq(text)), func(m core.Manager) bool { return slices.Contains(now, m) })
}

// mountManagers mounts the whole folder, as a mount with subPath is never updated.
func (i *Installer) mountManagers(pod *corev1.PodSpec) {
	container := &pod.Containers[0]
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{
		Name: managersKey, MountPath: managersMount, ReadOnly: true,
	})
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: managersKey, VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: i.opts.managersName()},
		},
	}})
}
