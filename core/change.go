package core

import (
	"maps"

	"github.com/runtime-watcher/runtime-watcher/core/rawjson"
)

// Change is one thing that happened, or is about to, to one object, as a source saw it.
type Change struct {
	// Operation is what happened.
	Operation Operation
	// Subresource is the part of the resource that was written, such as "status"; empty for the resource itself.
	Subresource string
	// DryRun is whether the write will not be persisted.
	DryRun bool
	// Old is the object before, nil on CREATE; New the object after, nil on DELETE.
	Old, New *Object
}

// Object returns the newest state that the change carries, nil if there is none.
func (c *Change) Object() *Object {
	if c.New != nil {
		return c.New
	}

	return c.Old
}

// sameField reports whether a top-level field means the same before and after. Absent and null are equal.
func (c *Change) sameField(name string) bool {
	return sameRaw(c.Old.Field(name), c.New.Field(name))
}

func sameRaw(a, b []byte) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}

	return rawjson.Equal(a, b)
}

// sameContent reports whether everything that is not bookkeeping of the API server means the same before and after.
func (c *Change) sameContent() bool {
	return sameFields(c.Old.fields, c.New.fields) && sameFields(c.Old.metadata, c.New.metadata)
}

func sameFields(a, b []rawField) bool {
	return maps.EqualFunc(present(a), present(b), rawjson.Equal)
}

// present returns the fields that are not null, by name: objects of foreign input can have very many.
func present(fields []rawField) map[string][]byte {
	byName := make(map[string][]byte, len(fields))

	for _, f := range fields {
		if byName[f.name] = f.raw; isNull(f.raw) {
			delete(byName, f.name)
		}
	}

	return byName
}
