package installation

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownership"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// Labels and annotations are words here, which [Options.key] completes. The mark is the annotation
// of [names.Names.InstalledBy]: it has the owner's identity, on each object that an installer
// makes. An object without our mark is not ours.

// annotationRuntime contains the ID of a runtime, on each object there. An agent with the keys of
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
var errForeign error = &reasons.Error{
	Text: "objects without the mark of an installer are in the way in runtime", Label: "owned",
}

// errTaken has the same label: two runtimes have kubeconfigs of one cluster.
var errTaken error = &reasons.Error{Text: "another runtime has its agent in the cluster of runtime", Label: "owned"}

// marks are the annotations of one installer.
type marks struct {
	names  names.Names
	owner  string   // the value of the mark of this installer
	former []string // values that this installer takes over
	adopt  []string // objects without a mark that it takes over, as <Kind>/<name>
}

func (m marks) markOf(object client.Object) string {
	return object.GetAnnotations()[m.names.InstalledBy()]
}

func (m marks) addMark(object *unstructured.Unstructured) {
	annotate(object, m.names.InstalledBy(), m.owner)
}

// haveMark reports whether the objects have the mark of this installer. The generation of an
// object stays the same when only its mark changes.
func (m marks) haveMark(objects ...*unstructured.Unstructured) bool {
	return !slices.ContainsFunc(objects, func(object *unstructured.Unstructured) bool {
		return object != nil && m.markOf(object) != m.owner
	})
}

// isOwner reports whether a mark belongs to this installer, or to a former owner.
func (m marks) isOwner(mark string) bool {
	if mark == "" {
		return false
	}
	return mark == m.owner || slices.Contains(m.former, mark)
}

// isAdopted reports whether [Options.Adopt] names an object without a mark.
func (m marks) isAdopted(object client.Object) bool {
	return m.markOf(object) == "" && slices.Contains(m.adopt, kindOf(object)+"/"+object.GetName())
}

// isCreated reports whether an installer has created a namespace. [Options.Adjust] may remove the
// annotation, so that a namespace that this installer creates is left to others.
func (m marks) isCreated(namespace *unstructured.Unstructured) bool {
	return namespace.GetAnnotations()[m.names.Key(annotationCreatedBy)] == createdBy
}

// rights decide which objects in a runtime this installation may change or remove.
type rights struct {
	marks

	id    core.RuntimeID
	found *found
}

// isOurs reports whether an object has our mark. An earlier version of this package, or another
// client that has removed the mark, leaves objects that were applied by our field manager. They
// are ours if the mark of this installer is on an object that decides about the runtime.
func (r *rights) isOurs(object client.Object) bool {
	mark := r.markOf(object)
	if mark != "" {
		return r.isOwner(mark)
	}
	return ownership.WrittenBy(object, fieldOwner) && r.hasDecidingMark()
}

func (r *rights) hasDecidingMark() bool {
	return slices.ContainsFunc(r.found.decidingObjects(), func(object client.Object) bool {
		return r.isOwner(r.markOf(object))
	})
}

// isOfThisRuntime reports whether an object has our mark and belongs to no other runtime.
func (r *rights) isOfThisRuntime(object client.Object) bool {
	return r.isOurs(object) && r.checkRuntime(object) == nil
}

// mayWrite reports whether an installation may change or remove an object.
func (r *rights) mayWrite(object client.Object) bool { return r.isOurs(object) || r.isAdopted(object) }

// ownsNamespace reports whether this installer has created the existing namespace. The namespace
// of an earlier version has no owner.
func (r *rights) ownsNamespace() bool {
	namespace := r.found.namespace
	return namespace != nil && r.isCreated(namespace) && r.isOurs(namespace)
}

// checkRuntime fails if the agent of another runtime is in the cluster.
func (r *rights) checkRuntime(object client.Object) error {
	id := object.GetAnnotations()[r.names.Key(annotationRuntime)]
	if id == "" || id == string(r.id) {
		return nil
	}
	return fmt.Errorf("%w %q: correct the kubeconfig, or delete %s %s/%s if runtime %.80q no longer exists",
		errTaken, r.id, kindOf(object), object.GetNamespace(), object.GetName(), id)
}

// checkOwners fails unless this installation may change the objects. The error names foreign
// objects.
func (r *rights) checkOwners(objects []client.Object) error {
	var foreign []string
	for _, object := range objects {
		mark := r.markOf(object)
		if mark != "" && !r.isOwner(mark) {
			return fmt.Errorf("%w %q: %s %s belongs to %.200q, and this is %.200q",
				errOwned, r.id, kindOf(object), object.GetName(), mark, r.owner)
		}
		if err := r.checkRuntime(object); err != nil {
			return err
		}
		if !r.mayWrite(object) {
			foreign = append(foreign, kindOf(object)+"/"+object.GetName())
		}
	}

	if len(foreign) == 0 {
		return nil
	}
	return fmt.Errorf("%w %q: want no %s there, or the annotation %s: %s on each: "+
		"delete them, use other names (options Name and ConfigurationName), or name them in Options.Adopt",
		errForeign, r.id, strings.Join(foreign, ", "), r.names.InstalledBy(), r.owner)
}
