package admission

import (
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// maxCompared bounds how many top-level fields of an object without spec are compared one by one. Each
// has a cost, and an expression that exceeds the budget fails. A kind has few fields, unless it keeps
// unknown ones.
const maxCompared = 64

// matchConditions make an API server decide as [core.Changed] does: it calls the webhook for writes that
// are persisted and, of updates, for those that changed the watched field, the labels or the owner.
//
// A condition that fails to evaluate loses the write, as failures of the webhook are ignored. Each is
// defined for every pair of objects: has() before every access, no index that may be missing, and no
// step that costs more than the size of an object.
func (w *Watch) matchConditions() []admissionregistrationv1.MatchCondition {
	changed := specChanged()
	if w.Field == core.FieldStatus {
		changed = statusChanged()
	}

	return []admissionregistrationv1.MatchCondition{
		{Name: "persisted", Expression: "!has(request.dryRun) || !request.dryRun"},
		{Name: "changed", Expression: changed},
	}
}

// specChanged is [core.SpecChanged].
func specChanged() string {
	return or(
		"request.operation != 'UPDATE'",
		"object == null",
		"oldObject == null",
		"has(object.metadata.deletionTimestamp) && !has(oldObject.metadata.deletionTimestamp)",
		held("oldObject")+" && !("+held("object")+")",
		labels("object")+" != "+labels("oldObject"),
		owner("object")+" != "+owner("oldObject"),
		field("object", "spec")+" != "+field("oldObject", "spec"),
		field("object", "spec")+" == null && ("+contentChanged()+")",
	)
}

// statusChanged is [core.StatusChanged] of the status subresource.
func statusChanged() string {
	return "request.operation == 'UPDATE' && (" + or(
		"object == null",
		"oldObject == null",
		field("object", "status")+" != "+field("oldObject", "status"),
	) + ")"
}

func contentChanged() string {
	most := strconv.Itoa(maxCompared)

	return or(
		"object.size() > "+most,
		"oldObject.size() > "+most,
		membersDiffer("object", "oldObject", "apiVersion", "kind", "metadata"),
		membersDiffer("object.metadata", "oldObject.metadata", "managedFields", "resourceVersion", "generation"),
	)
}

// membersDiffer is whether two maps differ in a member that is not skipped. Null and absent are equal.
func membersDiffer(a, b string, skipped ...string) string {
	skip := "key in ['" + strings.Join(skipped, "', '") + "']"

	return or(
		"!"+a+".all(key, "+or(skip, a+"[key] == (key in "+b+" ? "+b+"[key] : null)")+")",
		"!"+b+".all(key, "+or(skip, "key in "+a, b+"[key] == null")+")",
	)
}

// field is a field of an object, null when it is absent.
func field(object, name string) string {
	return "(has(" + object + "." + name + ") ? " + object + "." + name + " : null)"
}

func labels(object string) string { return field(object, "metadata.labels") }

// owner is the value of the owner annotation, null when it is absent.
func owner(object string) string {
	const key = "'" + core.OwnerAnnotation + "'"

	annotations := object + ".metadata.annotations"

	return "(has(" + annotations + ") && " + key + " in " + annotations + " ? " + annotations + "[" + key + "] : null)"
}

// held is whether finalizers hold an object.
func held(object string) string {
	return "has(" + object + ".metadata.finalizers) && " + object + ".metadata.finalizers.size() > 0"
}

func or(alternatives ...string) string { return strings.Join(alternatives, " || ") }
