package certificates

import (
	"fmt"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// errRuntimeTaken means that the certificates of a runtime belong to another object: two objects
// have the same runtime ID.
var errRuntimeTaken error = &reasons.Error{
	Text: "certificates of the runtime belong to another object", Label: "runtime_taken",
}

// checkOwner refuses a Certificate of another runtime or another owner.
func (c *Certificates) checkOwner(existing *certv1.Certificate, r Runtime) error {
	if existing == nil {
		return nil
	}
	if !c.isOf(existing, r.ID) {
		return fmt.Errorf("%w: runtime %q: Certificate %s/%s is of %q in the set %q: delete it if that set is gone",
			errRuntimeTaken, r.ID, existing.Namespace, existing.Name, runtimeOf(existing), existing.Labels[labelSet])
	}
	if owns(existing, r.Owner) || isNamesake(existing, r.Owner) {
		return nil
	}
	return fmt.Errorf("%w: runtime %q: Certificate %s/%s belongs to %s with the UID %s: "+
		"give this object another ID, or delete that Certificate if its object is gone",
		errRuntimeTaken, r.ID, existing.Namespace, existing.Name,
		existing.Annotations[annotationOwner], existing.Annotations[annotationOwnerUID])
}

// owns reports whether a Certificate belongs to an owner. A Certificate without owner belongs to
// every owner.
func owns(certificate *certv1.Certificate, owner client.Object) bool {
	uid := certificate.Annotations[annotationOwnerUID]
	return uid == "" || owner != nil && uid == string(owner.GetUID())
}

// isNamesake reports whether an owner has the name of the recorded one, which is gone then: it
// takes its place.
func isNamesake(certificate *certv1.Certificate, owner client.Object) bool {
	return owner != nil && certificate.Annotations[annotationOwner] == ownerName(owner)
}

func ownerName(owner client.Object) string { return owner.GetNamespace() + "/" + owner.GetName() }

// isOf reports whether this set has made a Certificate for a runtime. Another set uses the same
// names.
func (c *Certificates) isOf(certificate *certv1.Certificate, id core.RuntimeID) bool {
	return runtimeOf(certificate) == id && certificate.Labels[labelSet] == string(c.names)
}

func runtimeOf(certificate *certv1.Certificate) core.RuntimeID {
	if id, ok := certificate.Annotations[annotationRuntime]; ok {
		return core.RuntimeID(id)
	}
	return core.RuntimeID(certificate.Spec.CommonName)
}

// setOwner adds an owner reference where Kubernetes allows one: to an owner in the same namespace,
// or cluster-scoped.
func (c *Certificates) setOwner(certificate *certv1.Certificate, r Runtime) error {
	if r.Owner == nil || r.Owner.GetNamespace() != "" && r.Owner.GetNamespace() != c.namespace {
		return nil
	}
	if err := controllerutil.SetOwnerReference(r.Owner, certificate, schemeOf(r.Owner, c.client.Scheme())); err != nil {
		return fmt.Errorf("%w: owner of runtime %q: %w", errInvalidRuntime, r.ID, err)
	}
	return nil
}

// schemeOf returns a scheme with the kind of an owner that names its kind itself, as metadata does.
func schemeOf(owner client.Object, scheme *runtime.Scheme) *runtime.Scheme {
	gvk := owner.GetObjectKind().GroupVersionKind()
	if _, _, err := scheme.ObjectKinds(owner); err == nil || gvk.Empty() {
		return scheme
	}
	own := runtime.NewScheme()
	own.AddKnownTypeWithName(gvk, owner)
	return own
}
