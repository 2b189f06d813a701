package controllerruntime

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// The reasons of [Runtimes.Domain], in addition to the reasons of package core.
const (
	// ReasonRuntimeUnknown means that no object represents the runtime.
	ReasonRuntimeUnknown core.Reason = "runtime_unknown"
	// ReasonOwnerMismatch means that the owner of the event represents another runtime, or
	// represents no runtime although the sender has an object.
	ReasonOwnerMismatch core.Reason = "owner_mismatch"
)

var _ listener.Domains = (*Runtimes)(nil)

// Domain returns the registered domain of the owner of an event or, if the event has no owner, of
// the object that represents the runtime. It implements [listener.Domains] for
// [listener.SANPinning].
//
// It refuses an event for one of these reasons, with a metric label for each:
//
//   - the owner does not exist ("owner_missing") or represents another runtime ("owner_mismatch")
//   - no object represents the runtime ("runtime_unknown"), or several objects do
//   - the domain is missing or empty, or contains a wildcard
//   - two objects have the same domain, so it proves nothing
//
// Domains are equal if they differ only in case, in a trailing dot, or in the spelling of an IP
// address. Domain never blocks. Its error wraps [core.ErrNotReady] while the cache is not synced.
func (r *Runtimes) Domain(_ context.Context, runtime core.RuntimeID, event *core.WatchEvent) (string, error) {
	object, err := r.findTriggered(runtime, event)
	if err != nil {
		return "", err
	}

	domain, err := r.registeredDomain(object)
	if err != nil {
		return "", err
	}

	same, err := r.findObjects(indexDomain, canonical(domain))
	if err != nil {
		return "", err
	}
	if len(same) > 1 {
		cause := fmt.Errorf("domain %q is registered %d times, want once", domain, len(same))
		return "", listener.Forbidden(reasons.DomainAmbiguous, cause)
	}
	return domain, nil
}

// findTriggered returns the object that an event triggers: its owner, or the object of the runtime.
func (r *Runtimes) findTriggered(runtime core.RuntimeID, event *core.WatchEvent) (client.Object, error) {
	owned, err := r.findObjects(indexRuntime, string(runtime))
	if err != nil {
		return nil, err
	}
	if event.Owner != (types.NamespacedName{}) {
		return r.ownerOf(event.Owner, runtime, len(owned) > 0)
	}

	switch len(owned) {
	case 0:
		return nil, listener.Forbidden(ReasonRuntimeUnknown, fmt.Errorf("no %s represents runtime %q", r.kind, runtime))
	case 1:
		return owned[0], nil
	default:
		cause := fmt.Errorf("%d objects of kind %s represent runtime %q, want one", len(owned), r.kind, runtime)
		return nil, listener.Forbidden(reasons.DomainAmbiguous, cause)
	}
}

// ownerOf returns the owner that an event names. It refuses an owner that represents another
// runtime. An owner without an identity is refused if an object represents the sender (known).
func (r *Runtimes) ownerOf(name types.NamespacedName, runtime core.RuntimeID, known bool) (client.Object, error) {
	objects, err := r.findObjects(indexOwner, name.String())
	if err != nil {
		return nil, err
	}
	if len(objects) == 0 {
		return nil, listener.Forbidden(reasons.OwnerMissing, fmt.Errorf("owner %s %q does not exist", r.kind, name))
	}

	object := objects[0]
	id := r.identify(object)
	isNamed := id != "" || known
	if isNamed && id != runtime {
		cause := fmt.Errorf("owner %s %q represents runtime %q, not %q", r.kind, name, id, runtime)
		return nil, listener.Forbidden(ReasonOwnerMismatch, cause)
	}
	return object, nil
}

// registeredDomain refuses an object without a usable domain.
func (r *Runtimes) registeredDomain(object client.Object) (string, error) {
	domain := r.domain(object)
	switch {
	case strings.Contains(domain, "*"):
		return "", r.refuseDomain(reasons.DomainWildcard, object, "a wildcard as")
	case canonical(strings.TrimSpace(domain)) != "":
		return domain, nil
	case domain == "" && !r.hasAnnotation(object):
		return "", r.refuseDomain(reasons.DomainMissing, object, "no")
	default:
		return "", r.refuseDomain(reasons.DomainEmpty, object, "an empty")
	}
}

// hasAnnotation reports whether an object has the annotation, if the domain is one.
func (r *Runtimes) hasAnnotation(object client.Object) bool {
	_, ok := object.GetAnnotations()[r.opts.DomainAnnotation]
	return ok && r.opts.Domain == nil
}

// refuseDomain returns the error for an object with a problem of its domain.
func (r *Runtimes) refuseDomain(reason core.Reason, object client.Object, problem string) error {
	place := "registered domain"
	if r.opts.Domain == nil {
		place = "annotation " + r.opts.DomainAnnotation
	}
	cause := fmt.Errorf("%s %s/%s has %s %s", r.kind, object.GetNamespace(), object.GetName(), problem, place)
	return listener.Forbidden(reason, cause)
}
