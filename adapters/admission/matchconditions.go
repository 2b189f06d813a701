package admission

import (
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// maxCompared bounds the top-level fields of an object without spec that are compared one by one.
// Each comparison has a cost, and an expression that exceeds the budget fails. Kinds have few
// fields, unless they keep unknown ones.
const maxCompared = 64

// matchConditions returns the conditions of the watch, after those that decide as [core.Changed].
// The webhook is called for persisted writes that changed the watched field, the labels or the
// owner.
//
// A write is lost if an expression fails, because failures are ignored. So each expression must be
// defined for every pair of objects. It uses has() before every access and no index that may be
// missing. No step costs more than the size of an object.
func (r *registration) matchConditions(target target) (all []admissionregistrationv1.MatchCondition) {
	if !r.opts.NoMatchConditions {
		all = []admissionregistrationv1.MatchCondition{
			{Name: "persisted", Expression: "!has(request.dryRun) || !request.dryRun"},
			{Name: "changed", Expression: target.changedCondition(r.opts.OwnerAnnotation)},
		}
	}

	for _, c := range r.Conditions {
		all = append(all, admissionregistrationv1.MatchCondition(c))
	}
	return all
}

// changedCondition decides as [core.Changed] for one part of a resource. The owner is the one in
// that annotation.
func (t target) changedCondition(annotation string) string {
	switch t.subresource {
	case "":
		return specChanged(annotation)
	case string(core.FieldStatus):
		return statusChanged()
	case subresourceScale:
		return updateChanged(field("object", "spec") + " != " + field("oldObject", "spec"))
	default:
		return updateChanged(contentChanged())
	}
}

// updateChanged decides about a subresource of which every operation except UPDATE counts.
func updateChanged(differ string) string {
	return or("request.operation != 'UPDATE'", "object == null", "oldObject == null", differ)
}

func specChanged(annotation string) string {
	return or(
		"request.operation != 'UPDATE'",
		"object == null",
		"oldObject == null",
		"has(object.metadata.deletionTimestamp) && !has(oldObject.metadata.deletionTimestamp)",
		// The last finalizer is removed by an UPDATE, after which the object is gone.
		held("oldObject")+" && !("+held("object")+")",
		labels("object")+" != "+labels("oldObject"),
		owner("object", annotation)+" != "+owner("oldObject", annotation),
		field("object", "spec")+" != "+field("oldObject", "spec"),
		field("object", "spec")+" == null && ("+contentChanged()+")",
	)
}

func statusChanged() string {
	return "request.operation == 'UPDATE' && (" + or(
		"object == null",
		"oldObject == null",
		field("object", "status")+" != "+field("oldObject", "status"),
	) + ")"
}

// contentChanged compares objects without spec. It is true for objects with too many fields.
func contentChanged() string {
	most := strconv.Itoa(maxCompared)
	return or(
		"object.size() > "+most,
		"oldObject.size() > "+most,
		membersDiffer("object", "oldObject", "apiVersion", "kind", "metadata"),
		membersDiffer("object.metadata", "oldObject.metadata", "managedFields", "resourceVersion", "generation"),
	)
}

// membersDiffer is true if two maps differ in a key that is not skipped. Null and absent are equal.
func membersDiffer(a, b string, skipped ...string) string {
	skip := "key in ['" + strings.Join(skipped, "', '") + "']"
	return or(
		"!"+a+".all(key, "+or(skip, a+"[key] == (key in "+b+" ? "+b+"[key] : null)")+")",
		"!"+b+".all(key, "+or(skip, "key in "+a, b+"[key] == null")+")",
	)
}

// field returns a field of an object, or null if it is absent.
func field(object, name string) string {
	return "(has(" + object + "." + name + ") ? " + object + "." + name + " : null)"
}

func labels(object string) string { return field(object, "metadata.labels") }

// owner takes the name of an annotation, which has no quotation mark.
func owner(object, annotation string) string {
	key := "'" + annotation + "'"
	annotations := object + ".metadata.annotations"
	return "(has(" + annotations + ") && " + key + " in " + annotations + " ? " + annotations + "[" + key + "] : null)"
}

func held(object string) string {
	return "has(" + object + ".metadata.finalizers) && " + object + ".metadata.finalizers.size() > 0"
}

// or joins expressions. None of them may have an operator that binds less than ||.
func or(alternatives ...string) string { return strings.Join(alternatives, " || ") }
