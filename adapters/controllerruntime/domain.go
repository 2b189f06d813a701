package controllerruntime

import (
	"context"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// Why [Runtimes.Domain] refuses an event, as metric labels, besides the reasons of package listener.
const (
	// ReasonRuntimeUnknown means that no object stands for the runtime that sent the event.
	ReasonRuntimeUnknown = "runtime_unknown"
	// ReasonOwnerMismatch means that the owner which the event names stands for another runtime than its sender.
	ReasonOwnerMismatch = "owner_mismatch"
)

var _ listener.Domains = (*Runtimes)(nil)

// Domain returns the domain that is registered for what the event wants to trigger: in the annotation of its owner where
// it names one, and else of the object that stands for the runtime. It is made for [listener.SANPinning].
//
// It refuses, each with a reason of its own: an owner that does not exist, or that stands for another runtime; a runtime
// without object; a missing, an empty and a wildcard domain; a domain that is registered twice, which proves nothing,
// and a runtime that has several objects. Domains that differ in case or in a trailing dot only are the same. It never
// blocks, and its error wraps [core.ErrNotReady] while the cache is not synced.
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
		return "", listener.Forbidden(listener.ReasonDomainAmbiguous,
			"domain %q is registered %d times, want once", domain, len(same))
	}

	return domain, nil
}

// triggered returns the object that the event is about.
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
		return nil, listener.Forbidden(ReasonRuntimeUnknown, "no %s stands for runtime %q", r.kind.Kind, runtime)
	case 1:
		return &owned[0], nil
	default:
		return nil, listener.Forbidden(listener.ReasonDomainAmbiguous, "%d objects of kind %s stand for runtime %q, want one",
			len(owned), r.kind.Kind, runtime)
	}
}

// owner returns the object that the event names, unless it is known to be another's: because the object says so, or
// because it does not say and the sender has one of its own.
func (r *Runtimes) owner(
	ctx context.Context, name types.NamespacedName, runtime core.RuntimeID, known bool,
) (*metav1.PartialObjectMetadata, error) {
	objects, err := r.find(ctx, indexOwner, name.String())
	if err != nil {
		return nil, err
	}

	if len(objects) == 0 {
		return nil, listener.Forbidden(listener.ReasonOwnerMissing, "owner %s %q does not exist", r.kind.Kind, name)
	}

	object := &objects[0]
	if id := r.identify(object); id != runtime && (id != "" || known) {
		return nil, listener.Forbidden(ReasonOwnerMismatch, "owner %s %q stands for runtime %q, not for %q",
			r.kind.Kind, name, id, runtime)
	}

	return object, nil
}

// registered returns the domain in the object's annotation.
func (r *Runtimes) registered(object *metav1.PartialObjectMetadata) (string, error) {
	domain, ok := object.Annotations[r.annotation]

	switch {
	case !ok:
		return "", r.refuse(listener.ReasonDomainMissing, object, "has no annotation")
	case canonical(strings.TrimSpace(domain)) == "":
		return "", r.refuse(listener.ReasonDomainEmpty, object, "has an empty annotation")
	case strings.Contains(domain, "*"):
		return "", r.refuse(listener.ReasonDomainWildcard, object, "has a wildcard in its annotation")
	default:
		return domain, nil
	}
}

func (r *Runtimes) refuse(reason string, object *metav1.PartialObjectMetadata, what string) error {
	return listener.Forbidden(reason, "%s %s/%s %s %s", r.kind.Kind, object.Namespace, object.Name, what, r.annotation)
}
