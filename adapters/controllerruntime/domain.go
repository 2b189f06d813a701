package controllerruntime

import (
	"context"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

const (
	reasonRuntimeUnknown = "runtime_unknown"
	reasonOwnerMismatch  = "owner_mismatch"
)

var _ listener.Domains = (*Runtimes)(nil)

// Domain returns the registered domain of the object that an event is about. That is the owner of
// the event, or without an owner the object that stands for the runtime. It implements
// [listener.Domains] for [listener.SANPinning].
//
// It refuses an event for one of these reasons, with a metric label for each:
//
//   - the owner does not exist, or stands for another runtime ("owner_mismatch")
//   - no object stands for the runtime ("runtime_unknown"), or several do
//   - the domain is missing, empty, or has a wildcard
//   - two objects have the same domain, so it proves nothing
//
// Domains are equal if they differ only in case, in a trailing dot, or in the spelling of an IP
// address. Domain never blocks. Its error wraps [core.ErrNotReady] while the cache is not synced.
func (r *Runtimes) Domain(ctx context.Context, runtime core.RuntimeID, event *core.WatchEvent) (string, error) {
	object, err := r.triggered(ctx, runtime, event)
	if err != nil {
		return "", err
	}

	domain, err := r.registered(object)
	if err != nil {
		return "", err
	}

	same, err := r.find(ctx, indexDomain, canonical(domain))
	if err != nil {
		return "", err
	}
	if len(same) > 1 {
		return "", listener.Forbidden(reasons.DomainAmbiguous,
			"domain %q is registered %d times, want once", domain, len(same))
	}
	return domain, nil
}

func (r *Runtimes) triggered(
	ctx context.Context, runtime core.RuntimeID, event *core.WatchEvent,
) (*metav1.PartialObjectMetadata, error) {
	owned, err := r.find(ctx, indexRuntime, string(runtime))
	if err != nil {
		return nil, err
	}
	if event.Owner != (types.NamespacedName{}) {
		return r.owner(ctx, event.Owner, runtime, len(owned) > 0)
	}
	switch len(owned) {
	case 0:
		return nil, listener.Forbidden(reasonRuntimeUnknown, "no %s stands for runtime %q", r.kind.Kind, runtime)
	case 1:
		return owned[0], nil
	default:
		return nil, listener.Forbidden(reasons.DomainAmbiguous,
			"%d objects of kind %s stand for runtime %q, want one", len(owned), r.kind.Kind, runtime)
	}
}

// owner returns the owner that an event names. It refuses an owner that stands for another runtime.
// An owner without an identity is refused if the sender has an object of its own (known).
func (r *Runtimes) owner(
	ctx context.Context, name types.NamespacedName, runtime core.RuntimeID, known bool,
) (*metav1.PartialObjectMetadata, error) {
	objects, err := r.find(ctx, indexOwner, name.String())
	if err != nil {
		return nil, err
	}
	if len(objects) == 0 {
		return nil, listener.Forbidden(reasons.OwnerMissing, "owner %s %q does not exist", r.kind.Kind, name)
	}
	object := objects[0]
	if id := r.identify(object); id != runtime && (id != "" || known) {
		return nil, listener.Forbidden(reasonOwnerMismatch, "owner %s %q stands for runtime %q, not for %q",
			r.kind.Kind, name, id, runtime)
	}
	return object, nil
}

func (r *Runtimes) registered(object *metav1.PartialObjectMetadata) (string, error) {
	domain, ok := object.Annotations[r.annotation]
	switch {
	case !ok:
		return "", r.refuse(reasons.DomainMissing, object, "has no annotation")
	case canonical(strings.TrimSpace(domain)) == "":
		return "", r.refuse(reasons.DomainEmpty, object, "has an empty annotation")
	case strings.Contains(domain, "*"):
		return "", r.refuse(reasons.DomainWildcard, object, "has a wildcard in its annotation")
	default:
		return domain, nil
	}
}

func (r *Runtimes) refuse(reason string, object *metav1.PartialObjectMetadata, problem string) error {
	return listener.Forbidden(reason, "%s %s/%s %s %s",
		r.kind.Kind, object.Namespace, object.Name, problem, r.annotation)
}
