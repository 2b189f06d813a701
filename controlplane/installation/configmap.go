package installation

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
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

// annotationRestart has a value that changes when a manager is removed, or its webhook is
// corrected. It is on the ConfigMap and on the pods, which are replaced then. A running agent would
// still send heartbeats for a manager that its file no longer lists. New agents send the resync
// that stands in for the writes that a webhook has missed.
const annotationRestart = "managers-removed"

// restart returns the value of annotationRestart. live is the ConfigMap as it was read, nil if
// there is none. The agents restart for the managers.
func (i *Installer) restart(live *unstructured.Unstructured, managers []core.Manager) (last string) {
	if live != nil {
		last = remote.Token(live.GetAnnotations()[i.key(annotationRestart)])
	}
	if len(managers) == 0 {
		return last
	}
	return shortSum(sumOf(last, managers))
}

type restarted struct {
	restart string
	until   time.Time
	pause   time.Duration
}

// paced returns the value of annotationRestart for the pods. It is the one that is due, unless the
// agents have restarted not long ago, as others undo each correction. The pauses grow to an hour.
// After a new start of this process, the agents restart once without a pause.
func (i *Installer) paced(id core.RuntimeID, due string, former, missed bool) string {
	found, known := i.restarts.Load(id)
	last, _ := found.(restarted)
	now := i.opts.Now()
	if now.Before(last.until) && !former {
		return last.restart
	}
	if due != last.restart && (known || missed) {
		pause := time.Minute
		if now.Sub(last.until) < verifyAfter {
			pause = min(2*last.pause+pause, verifyAfter)
		}
		i.restarts.Store(id, restarted{due, now.Add(pause), pause})
	}
	return due
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

// errOwned means that another installer has the runtime. Nothing was changed there.
var errOwned error = &reasons.Error{Text: "another installer has installed the agent in runtime", Label: "owned"}

// errTaken has the same label: two runtimes have kubeconfigs of one cluster.
var errTaken error = &reasons.Error{Text: "another runtime has its agent in the cluster of runtime", Label: "owned"}

// annotationRuntime has the ID of a runtime, on its ConfigMap. An agent with the keys of another
// runtime would speak for it.
const annotationRuntime = "runtime-id"

// checkOwner accepts nil, and objects without the annotations: they belong to every installer.
func (i *Installer) checkOwner(in *cluster, objects ...*unstructured.Unstructured) error {
	for _, object := range objects {
		if object == nil {
			continue
		}
		owner := i.ownerOf(object)
		if owner != "" && owner != i.owner() && !slices.Contains(i.opts.FormerOwners, owner) {
			return fmt.Errorf("%w %q: %s %s is of %.200q, and this is %.200q",
				errOwned, in.id, object.GetKind(), object.GetName(), owner, i.owner())
		}
		if id := object.GetAnnotations()[i.key(annotationRuntime)]; id != "" && id != string(in.id) {
			return fmt.Errorf("%w %q: correct the kubeconfig, or delete %s %s/%s if runtime %.80q is gone",
				errTaken, in.id, object.GetKind(), object.GetNamespace(), object.GetName(), id)
		}
	}
	return nil
}

func (i *Installer) ownerOf(object *unstructured.Unstructured) string {
	return object.GetAnnotations()[i.opts.Names.InstalledBy()]
}

func (i *Installer) owner() string { return cmp.Or(i.opts.Owner, i.controlPlane) }

func annotate(object *unstructured.Unstructured, name, value string) {
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = make(map[string]string)
	}
	annotations[name] = value
	object.SetAnnotations(annotations)
}

// claim makes the ConfigMap with the managers one of this installer, before any other object is
// written. It fails if the ConfigMap is not as it was read: an API server lets only one of two
// installers create it, or change the same version of it. live is nil if there was none.
func (i *Installer) claim(ctx context.Context, in *cluster, wanted, live *unstructured.Unstructured) error {
	var err error
	if live == nil {
		err = in.Create(ctx, wanted.DeepCopy(), client.FieldOwner(fieldOwner))
	} else if i.ownerOf(live) != i.owner() {
		claimed := live.DeepCopy()
		annotate(claimed, i.opts.Names.InstalledBy(), i.owner())
		unchanged := client.MergeFromWithOptions(live, client.MergeFromWithOptimisticLock{})
		err = in.Patch(ctx, claimed, unchanged, client.FieldOwner(fieldOwner))
	}
	return in.wrap(err, "claim ConfigMap", wanted.GetName())
}
