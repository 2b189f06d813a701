package installation

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

const (
	// managersKey is the key of the ConfigMap, and the name of the file.
	managersKey = "managers"
	// managersMount is the folder of the file in a container.
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

// managers are those of the settings.
func (o Options) managers() (managers []core.Manager) {
	for name := range strings.SplitSeq(o.Settings[settingManagers], ",") {
		if name = strings.TrimSpace(name); name != "" {
			managers = append(managers, core.Manager(name))
		}
	}
	return managers
}

// validateManagers refuses names that an agent refuses. One of them makes it keep its last list.
func (o Options) validateManagers() (problems []error) {
	for _, manager := range o.managers() {
		_, err := core.ParseManager(string(manager))
		problems = append(problems, option.Unless(err == nil, "%s in Settings: %w", settingManagers, err))
	}
	return problems
}

// managersMap is the ConfigMap with the managers, one per line. The agents read it again while they
// run, so a new manager restarts nothing.
func (i *Installer) managersMap(r *Runtime, restart string) *unstructured.Unstructured {
	var lines strings.Builder
	for _, manager := range i.Managers(r.Watches) {
		lines.WriteString(string(manager) + "\n")
	}
	config := &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: i.opts.Namespace, Name: i.opts.managersName(), Labels: i.opts.labels(),
		},
		Data: map[string]string{managersKey: lines.String()},
	}
	config.Annotations = map[string]string{annotationRuntime: string(r.ID)}
	if restart != "" {
		config.Annotations[annotationRestart] = restart
	}
	if r.PullSecret != nil {
		config.Annotations[annotationPullSecret] = i.pullSecretName()
	}
	return i.finishedOf(config)
}

// annotationRestart has a value that changes when a manager is removed, or its webhook is
// corrected. It is on the ConfigMap and on the pods, which are replaced then. A running agent would
// still send heartbeats for a manager that its file no longer lists. New agents send the resync
// that stands in for the writes that a webhook has missed.
const annotationRestart = "operator.kyma-project.io/managers-removed"

// restart returns the value of annotationRestart. live is the ConfigMap as it was read, nil if
// there is none. The agents restart for the managers.
func restart(live *unstructured.Unstructured, managers []core.Manager) (last string) {
	if live != nil {
		last = remote.Token(live.GetAnnotations()[annotationRestart])
	}
	if len(managers) == 0 {
		return last
	}
	text := []byte(last)
	for _, manager := range managers {
		text = append(text, " "+string(manager)...)
	}
	return shortSum(sha256.Sum256(text))
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
	return without(remote.Managers(strings.FieldsSeq(text)), i.Managers(r.Watches))
}

// mountManagers gives the agent the file with its managers. The whole folder is mounted, as a mount
// with subPath is never updated.
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
