package core

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/internal/rawjson"
)

// Change is one write to one object, as a change source saw it, before or after its commit.
type Change struct {
	// Operation is the kind of write.
	Operation Operation
	// Subresource is the part of the resource that was written, such as "status". It is empty for
	// the resource itself.
	Subresource string
	// DryRun means that the write is not persisted.
	DryRun bool
	// Old is the object before the write, or nil on CREATE. New is the object after the write, or
	// nil on DELETE.
	Old, New *Object

	// Name identifies the object if Old and New do not, as in a CREATE with generateName. For a
	// subresource, Name takes precedence, because Old and New may be of another kind, such as
	// Scale.
	Name types.NamespacedName
	// GVK takes precedence over the kind in the object, because an API server may have converted
	// the object.
	GVK schema.GroupVersionKind

	// OwnerAnnotation is the annotation that names the owner. Default: [OwnerAnnotation].
	OwnerAnnotation string
}

// maxIdentity bounds the names and the kind of an event together, in bytes. Kubernetes allows
// fewer. Without the bound, foreign input could fill an outbox with megabytes under each of its
// keys.
const maxIdentity = 1 << 10

// Base returns the values of [WatchEvent].UID and Base for a change that is not committed yet.
func (c *Change) Base() (uid types.UID, base int64) {
	isCreation := c.Operation == OperationCreate && c.Subresource == ""
	switch {
	case isCreation && c.Old == nil && c.New != nil:
		return types.UID(text(find(c.New.metadata, "uid"))), 0
	case c.Old == nil:
	case c.Operation == OperationUpdate, c.Operation == OperationDelete && c.Subresource == "":
		base, err := strconv.ParseInt(text(c.Old.version), 10, 64)
		if err == nil && base > 0 {
			return types.UID(text(find(c.Old.metadata, "uid"))), base
		}
	}
	return "", 0
}

// maxUID bounds a uid, which has 36 bytes.
const maxUID = 64

func text(raw []byte) string {
	value, err := rawjson.NewReader(raw).Text()
	if err != nil || len(value) > maxUID {
		return ""
	}
	return value
}

// Event returns the event for the object of c, without an owner and with at as its Time. The error
// is permanent, with the reason invalid_object, if the object has no name or a name that is longer
// than Kubernetes allows.
func (c *Change) Event(at time.Time) (WatchEvent, error) {
	e := WatchEvent{
		Watched: c.Name, WatchedGVK: c.GVK,
		Operation: c.Operation, Field: fieldOf(c.Subresource), Time: at,
	}

	if o := cmp.Or(c.New, c.Old); o != nil {
		e.Generation = o.Generation
		e.Watched.Namespace = cmp.Or(o.Name.Namespace, e.Watched.Namespace)
		e.Watched.Name = cmp.Or(o.Name.Name, e.Watched.Name)
		e.WatchedGVK = cmp.Or(e.WatchedGVK, o.GVK)
	}

	if c.Subresource != "" && c.Name.Name != "" {
		e.Watched = c.Name
	}

	// A request about a Namespace states the Namespace's own name as its namespace.
	if e.WatchedGVK.Group == "" && e.WatchedGVK.Kind == "Namespace" {
		e.Watched.Namespace = ""
	}

	name := e.Watched
	kind := e.WatchedGVK
	size := len(name.Namespace) + len(name.Name) + len(kind.Group) + len(kind.Version) + len(kind.Kind)
	if name.Name == "" || size > maxIdentity {
		return WatchEvent{}, fmt.Errorf("%w: want a name, and at most %d bytes of names and kind, have %d",
			errInvalidObject, maxIdentity, size)
	}

	return e, nil
}

func fieldOf(subresource string) Field {
	if subresource == string(FieldStatus) {
		return FieldStatus
	}
	return FieldSpec
}
