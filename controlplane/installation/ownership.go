package installation

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownership"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// Labels and annotations are words here, which [Installer.key] completes. The mark is the
// annotation of [names.Names.InstalledBy]: it has the owner's identity, on each object that an
// installer makes. An object without our mark is not ours.

// annotationRuntime has the ID of a runtime, on each object there. An agent with the keys of
// another runtime would speak for it, also after the ConfigMap was deleted.
const annotationRuntime = "runtime-id"

const (
	// annotationCreatedBy is on a namespace that an installer has created.
	annotationCreatedBy = "created-by"
	createdBy           = "runtime-watcher-installation"
)

// errOwned means that another installer has the runtime, or a part of it. Nothing was changed
// there.
var errOwned error = &reasons.Error{Text: "another installer has installed the agent in runtime", Label: "owned"}

// errForeign has the same label: an object with a name of ours has no mark.
var errForeign error = &reasons.Error{Text: "objects without the mark of an installer are in the way in runtime", Label: "owned"}

// errTaken has the same label: two runtimes have kubeconfigs of one cluster.
var errTaken error = &reasons.Error{Text: "another runtime has its agent in the cluster of runtime", Label: "owned"}

func (i *Installer) owner() string { return cmp.Or(i.opts.Owner, i.controlPlane) }

func (i *Installer) ownerOf(object client.Object) string {
	return object.GetAnnotations()[i.opts.Names.InstalledBy()]
}

// isOwner reports whether a mark is of this installer, or of a former owner.
func (i *Installer) isOwner(mark string) bool {
	return mark != "" && (mark == i.owner() || slices.Contains(i.opts.FormerOwners, mark))
}

// isOurs reports whether an object has our mark. An earlier version of this package, or another
// client that has removed the mark, leaves objects that were applied by our field manager. They
// are ours if the mark of this installer is on an object that decides about the runtime.
func (v *visit) isOurs(object client.Object) bool {
	mark := v.ownerOf(object)
	if mark != "" {
		return v.isOwner(mark)
	}
	return ownership.WrittenBy(object, fieldOwner) && v.hasDecidingMark()
}

func (v *visit) hasDecidingMark() bool {
	return slices.ContainsFunc(v.found.deciding(), func(object client.Object) bool { return v.isOwner(v.ownerOf(object)) })
}

// isAdopted reports whether [Options.Adopt] names an object without a mark.
func (v *visit) isAdopted(object client.Object) bool {
	id := identityOf(object)
	return v.ownerOf(object) == "" && slices.Contains(v.opts.Adopt, id.kind+"/"+id.name)
}

// isOfThisRuntime reports whether an object has our mark, and is of no other runtime.
func (v *visit) isOfThisRuntime(object client.Object) bool {
	return v.isOurs(object) && v.checkRuntime(object) == nil
}

// mayWrite reports whether an installation may change or remove an object.
func (v *visit) mayWrite(object client.Object) bool { return v.isOurs(object) || v.isAdopted(object) }

// checkRuntime fails if the agent of another runtime is in the cluster.
func (v *visit) checkRuntime(object client.Object) error {
	id := object.GetAnnotations()[v.key(annotationRuntime)]
	if id == "" || id == string(v.id) {
		return nil
	}
	return fmt.Errorf("%w %q: correct the kubeconfig, or delete %s %s/%s if runtime %.80q is gone",
		errTaken, v.id, object.GetObjectKind().GroupVersionKind().Kind, object.GetNamespace(), object.GetName(), id)
}

// checkOwners fails unless this installation may change the objects. It names those of others.
func (v *visit) checkOwners(objects []client.Object) error {
	var foreign []string
	for _, object := range objects {
		kind := object.GetObjectKind().GroupVersionKind().Kind
		if mark := v.ownerOf(object); mark != "" && !v.isOwner(mark) {
			return fmt.Errorf("%w %q: %s %s is of %.200q, and this is %.200q",
				errOwned, v.id, kind, object.GetName(), mark, v.owner())
		}
		if err := v.checkRuntime(object); err != nil {
			return err
		}
		if !v.mayWrite(object) {
			foreign = append(foreign, kind+"/"+object.GetName())
		}
	}
	if len(foreign) == 0 {
		return nil
	}
	return fmt.Errorf("%w %q: want no %s there, or the annotation %s: %s on each: "+
		"delete them, use other names (options Name and ConfigurationName), or name them in Options.Adopt",
		errForeign, v.id, strings.Join(foreign, ", "), v.opts.Names.InstalledBy(), v.owner())
}

// claim makes the ConfigMap with the managers one of this installer, before any other object is
// written. It fails if the ConfigMap is not as it was read: an API server lets only one of two
// installers create it, or change the same version of it.
func (v *visit) claim(ctx context.Context) error {
	wanted, live := v.want.managers, v.found.managers
	if live == nil {
		err := v.Create(ctx, wanted.DeepCopy(), client.FieldOwner(fieldOwner))
		return v.wrap(err, "claim ConfigMap", wanted.GetName())
	}
	if v.ownerOf(live) == v.owner() {
		return nil
	}

	claimed := live.DeepCopy()
	annotate(claimed, v.opts.Names.InstalledBy(), v.owner())
	unchanged := client.MergeFromWithOptions(live, client.MergeFromWithOptimisticLock{})
	err := v.Patch(ctx, claimed, unchanged, client.FieldOwner(fieldOwner))
	return v.wrap(err, "claim ConfigMap", wanted.GetName())
}

// claimRole creates the ClusterRole of an informer without rules, unless it is there. Its name
// comes from ConfigurationName, so the ConfigMap does not decide between two installers with
// different names. All installers have one field manager, so an apply would take over the role that
// the other installer has just made. The ClusterRoleBinding has the same name, and follows the
// role.
func (v *visit) claimRole(ctx context.Context) error {
	if !v.opts.Informer || v.found.role != nil {
		return nil
	}
	role := named("rbac.authorization.k8s.io/v1", "ClusterRole", "", v.object(roleFile).GetName())
	annotate(role, v.opts.Names.InstalledBy(), v.owner())
	annotate(role, v.key(annotationRuntime), string(v.id))

	err := v.Create(ctx, role, client.FieldOwner(fieldOwner))
	if err != nil {
		return v.wrap(err, "claim ClusterRole", role.GetName())
	}
	v.found.role = role
	return nil
}

// ours reports whether an installer has created a namespace. [Options.Adjust] may remove the mark,
// so that a namespace that this installer creates is left to others.
func (i *Installer) ours(namespace *unstructured.Unstructured) bool {
	return namespace.GetAnnotations()[i.key(annotationCreatedBy)] == createdBy
}

// ownsNamespace reports whether this installer has created the existing namespace. The namespace
// of an earlier version has no owner.
func (v *visit) ownsNamespace() bool {
	return v.found.namespace != nil && v.ours(v.found.namespace) && v.isOurs(v.found.namespace)
}

func annotate(object *unstructured.Unstructured, name, value string) {
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = make(map[string]string)
	}
	annotations[name] = value
	object.SetAnnotations(annotations)
}
