package watcher

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
)

// identity is the identity of a Watcher. An API server gives each UID once.
type identity struct {
	name types.NamespacedName
	uid  types.UID // "" for a Watcher that is gone, and that this process has not seen.
}

func identityOf(w *v1beta2.Watcher) identity { return identity{client.ObjectKeyFromObject(w), w.UID} }

// nameOwner returns the reference of a route to a Watcher of that name.
func (r *reconciler) nameOwner(route client.Object, name string) (owner metav1.OwnerReference, found bool) {
	kind := r.opts.Names.GroupVersionKind()
	references := route.GetOwnerReferences()
	n := slices.IndexFunc(references, func(owner metav1.OwnerReference) bool {
		return owner.Kind == kind.Kind && owner.Name == name && strings.HasPrefix(owner.APIVersion, kind.Group+"/")
	})
	if n < 0 {
		return metav1.OwnerReference{}, false
	}

	return references[n], true
}

// ownsRoute reports whether a route belongs to a Watcher, and to this operator. A route that was
// restored from a backup, or of a Watcher that was created again, has another UID. The identity of
// a Watcher that is gone has no UID, and then the label of this controller decides. Kubernetes
// also deletes a route if the owner that it names does not exist.
func (r *reconciler) ownsRoute(route client.Object, of identity) bool {
	owner, found := r.nameOwner(route, of.name.Name)
	if !found {
		return false
	}

	mark := route.GetAnnotations()[r.opts.Names.InstalledBy()]
	if mark != "" && mark != r.opts.Owner {
		return false
	}
	if of.uid == "" {
		return route.GetLabels()[r.opts.Names.ManagedBy()] == fieldOwner
	}

	return owner.UID == of.uid
}

// lastSeen returns "" for a Watcher that this process has not seen.
func (r *reconciler) lastSeen(name types.NamespacedName) types.UID {
	last, _ := r.seen.Load(name)
	uid, _ := last.(types.UID)
	return uid
}
