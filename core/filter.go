package core

import (
	"maps"
	"slices"
)

// All lets a change pass that every filter lets pass; without filters, every change.
func All(filters ...Filter) Filter {
	return func(c *Change) bool {
		return !slices.ContainsFunc(filters, func(f Filter) bool { return !f(c) })
	}
}

// Any lets a change pass that at least one filter lets pass; without filters, none.
func Any(filters ...Filter) Filter {
	return func(c *Change) bool {
		return slices.ContainsFunc(filters, func(f Filter) bool { return f(c) })
	}
}

// Not lets pass what filter does not.
func Not(filter Filter) Filter {
	return func(c *Change) bool { return !filter(c) }
}

// Changed is what an agent uses unless it is told otherwise: persisted writes that changed what a watch is about, the
// status when the status subresource was written, and the spec otherwise.
func Changed(c *Change) bool {
	return NotDryRun(c) && (SpecChanged(c) || StatusChanged(c))
}

// SpecChanged lets an UPDATE of the resource itself pass when its spec means something else than before: the order of
// keys and the notation do not count, and absent equals absent. Of an object without spec (a ConfigMap) everything
// counts but metadata.managedFields, metadata.resourceVersion and metadata.generation.
//
// The beginning and the end of an object always count: CREATE, DELETE, and an UPDATE that sets the deletion timestamp
// or removes the last finalizer. So does an UPDATE that lacks one of the two states: nobody can tell that it changed
// nothing. CONNECT and subresources never count.
func SpecChanged(c *Change) bool {
	if c.Subresource != "" {
		return false
	}

	return lifecycle(c) || updates(c) && !sameSpec(c)
}

// StatusChanged lets an UPDATE of the status subresource pass when the status means something else than before. The
// beginning and the end of an object count as in [SpecChanged]; CONNECT and other subresources never do.
func StatusChanged(c *Change) bool {
	switch c.Subresource {
	case "":
		return lifecycle(c)
	case string(FieldStatus):
		return c.Operation == OperationUpdate && (!updates(c) || !c.sameField("status"))
	default:
		return false
	}
}

// GenerationChanged lets an UPDATE of the resource itself pass when metadata.generation differs, or when the object
// does not count generations, as nothing may be lost. The beginning and the end of an object count as in
// [SpecChanged]; CONNECT and subresources never do.
func GenerationChanged(c *Change) bool {
	if c.Subresource != "" {
		return false
	}

	return lifecycle(c) || updates(c) && (c.New.Generation == 0 || c.New.Generation != c.Old.Generation)
}

// Operations lets changes pass by one of the given operations.
func Operations(operations ...Operation) Filter {
	return func(c *Change) bool { return slices.Contains(operations, c.Operation) }
}

// Labels lets a change pass when the object has every one of the given labels, before or after: an object that leaves
// a selection matters to the watch, too. Without labels, every change passes.
func Labels(labels map[string]string) Filter {
	labels = maps.Clone(labels)

	return func(c *Change) bool {
		return len(labels) == 0 || hasLabels(c.New, labels) || hasLabels(c.Old, labels)
	}
}

// NotDryRun lets writes pass that will be persisted.
func NotDryRun(c *Change) bool { return !c.DryRun }

func hasLabels(o *Object, labels map[string]string) bool {
	if o == nil {
		return false
	}

	for key, value := range labels {
		if have, ok := o.Label(key); !ok || have != value {
			return false
		}
	}

	return true
}

// updates reports whether c is an UPDATE that shows both states. In one that does not there is nothing to compare.
func updates(c *Change) bool {
	return c.Operation == OperationUpdate && c.Old != nil && c.New != nil
}

// lifecycle reports whether c is the beginning or the end of an object, or must be taken for it.
func lifecycle(c *Change) bool {
	switch c.Operation {
	case OperationCreate, OperationDelete:
		return true
	case OperationUpdate:
		return !updates(c) || ends(c)
	default:
		return false
	}
}

func ends(c *Change) bool {
	return c.New.Deleting && !c.Old.Deleting || c.New.Finalizers == 0 && c.Old.Finalizers > 0
}

func sameSpec(c *Change) bool {
	if c.Old.Field("spec") == nil && c.New.Field("spec") == nil {
		return c.sameContent()
	}

	return c.sameField("spec")
}
