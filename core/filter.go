package core

import (
	"bytes"
	"maps"
)

// Changed is the default filter of an agent. It passes persisted writes that changed the watched
// part: the status if the status subresource was written, and the spec otherwise.
func Changed(c *Change) bool {
	if c.DryRun {
		return false
	}
	return specChanged(c) || statusChanged(c)
}

// specChanged passes an UPDATE of the resource itself when its spec differs. Absent equals null.
// The bytes are compared, because an API server writes both states in one way. An object without
// spec, such as a ConfigMap, is compared as a whole, except metadata.managedFields, resourceVersion
// and generation.
//
// A change of the labels or of the owner annotation counts, too: the object may enter or leave a
// selection. So do the beginning and the end of an object: CREATE, DELETE, and an UPDATE that sets
// the deletion timestamp or removes the last finalizer. An UPDATE that lacks one of the two states
// counts. CONNECT to the resource itself never counts.
//
// A CREATE, DELETE or CONNECT of a subresource always counts, such as an eviction or an exec. An
// UPDATE of "scale" counts when its spec differs. An UPDATE of any other subresource is compared as
// an object without spec. The status never counts.
func specChanged(c *Change) bool {
	if c.Subresource != "" {
		return subresourceChanged(c)
	}
	if lifecycle(c) {
		return true
	}
	if !updates(c) {
		return false
	}
	return !sameSpec(c) || !c.sameSelection()
}

// statusChanged passes an UPDATE of the status subresource when the status differs.
// The beginning and the end of an object count as in [specChanged]. CONNECT and other subresources
// never do.
func statusChanged(c *Change) bool {
	switch c.Subresource {
	case "":
		return lifecycle(c)
	case string(FieldStatus):
		isSame := updates(c) && c.sameField("status")
		return c.Operation == OperationUpdate && !isSame
	default:
		return false
	}
}

// subresourceChanged passes writes of every subresource except status. An UPDATE must differ.
func subresourceChanged(c *Change) bool {
	if c.Subresource == string(FieldStatus) {
		return false
	}

	switch c.Operation {
	case OperationCreate, OperationDelete, OperationConnect:
		return true
	case OperationUpdate:
		if c.Subresource == "scale" { // Its status is a copy that a client may send late.
			return !updates(c) || !c.sameField("spec")
		}
		return !updates(c) || !c.sameContent()
	default:
		return false
	}
}

func updates(c *Change) bool {
	return c.Operation == OperationUpdate && c.Old != nil && c.New != nil
}

// lifecycle reports whether c is, or may be, the beginning or the end of an object.
func lifecycle(c *Change) bool {
	switch c.Operation {
	case OperationCreate, OperationDelete:
		return true
	case OperationUpdate:
		return !updates(c) || beginsDeletion(c) || losesFinalizers(c)
	default:
		return false
	}
}

func beginsDeletion(c *Change) bool { return c.New.Deleting && !c.Old.Deleting }

// losesFinalizers reports whether nothing holds the object any more.
func losesFinalizers(c *Change) bool { return c.New.Finalizers == 0 && c.Old.Finalizers > 0 }

func sameSpec(c *Change) bool {
	if c.Old.Field("spec") == nil && c.New.Field("spec") == nil {
		return c.sameContent()
	}
	return c.sameField("spec")
}

// sameField compares bytes, as an API server writes both states in one way. Null is absent.
func (c *Change) sameField(name string) bool {
	return bytes.Equal(c.Old.Field(name), c.New.Field(name))
}

// sameContent compares everything but the bookkeeping of the API server.
func (c *Change) sameContent() bool {
	return maps.EqualFunc(present(c.Old.fields), present(c.New.fields), bytes.Equal) &&
		maps.EqualFunc(present(c.Old.metadata), present(c.New.metadata), bytes.Equal)
}

// sameSelection compares the labels and the owner annotation.
func (c *Change) sameSelection() bool {
	oldOwner, hadOwner := c.Old.Annotation(c.ownerAnnotation())
	newOwner, hasOwner := c.New.Annotation(c.ownerAnnotation())
	return hadOwner == hasOwner && oldOwner == newOwner && bytes.Equal(orNil(c.Old.labels), orNil(c.New.labels))
}

func present(fields []rawField) map[string][]byte {
	byName := make(map[string][]byte, len(fields))
	for _, f := range fields {
		byName[string(f.name)] = f.raw
		if isNull(f.raw) {
			delete(byName, string(f.name))
		}
	}
	return byName
}
