package admission

import (
	"cmp"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// maxIdentity is how many bytes the names and the kind of an event may have together. Kubernetes allows less for all of
// them; without it, whoever reaches the webhook could fill the outbox with megabytes under each of its keys.
const maxIdentity = 2 << 10

// event returns what the change asks to look at, without owner.
func (q *request) event(c *core.Change, now time.Time) core.WatchEvent {
	e := core.WatchEvent{
		Kind:       core.KindChanged,
		Watched:    q.name,
		WatchedGVK: q.gvk,
		Operation:  q.operation,
		Field:      fieldOf(q.subresource),
		Time:       now,
	}

	if o := c.Object(); o != nil {
		// The request has no name when a collection is deleted, nor when the name was generated.
		e.Watched = types.NamespacedName{
			Namespace: cmp.Or(o.Name.Namespace, q.name.Namespace),
			Name:      cmp.Or(o.Name.Name, q.name.Name),
		}
		e.Generation = o.Generation

		// The request's kind comes first: with matchPolicy Equivalent the object was converted to it.
		if q.gvk == (schema.GroupVersionKind{}) {
			e.WatchedGVK = o.GVK
		}
	}

	return e
}

func fieldOf(subresource string) core.Field {
	if subresource == "status" {
		return core.FieldStatus
	}

	return core.FieldSpec
}

// isNamed reports whether an event names an object, in as many bytes as an outbox should keep.
func isNamed(e *core.WatchEvent) bool {
	size := len(e.Watched.Namespace) + len(e.Watched.Name) +
		len(e.WatchedGVK.Group) + len(e.WatchedGVK.Version) + len(e.WatchedGVK.Kind)

	return e.Watched.Name != "" && size <= maxIdentity
}
