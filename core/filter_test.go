package core_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// The parts of the objects below.
const (
	oneSpec   = `"spec":{"x":1,"y":["a"]}`
	twoSpec   = `"spec":{"x":2,"y":["a"]}`
	oneStatus = `"status":{"s":1}`
	twoStatus = `"status":{"s":2}`
	oneData   = `"data":{"x":"1","y":"2"}`
	twoData   = `"data":{"x":"2","y":"2"}`
	ownedBy   = `"annotations":{"operator.kyma-project.io/owned-by":"kcp/one"}`
	ownedBy2  = `"annotations":{"operator.kyma-project.io/owned-by":"kcp/two"}`
)

// sampled returns an object of a kind with spec and status. Its metadata has generation 1 and more.
func sampled(metadata string, fields ...string) string {
	return `{"kind":"A","metadata":{"name":"a","generation":1` + prefixed(metadata) + `}` +
		prefixed(strings.Join(fields, ",")) + `}`
}

// configured returns an object of a kind without spec.
func configured(metadata string, fields ...string) string {
	return `{"kind":"ConfigMap","metadata":{"name":"a","uid":"u"` + prefixed(metadata) + `}` +
		prefixed(strings.Join(fields, ",")) + `}`
}

func prefixed(members string) string {
	if members == "" {
		return ""
	}
	return "," + members
}

// The objects of the changes in tests. Each differs from base or config as its name says.
var (
	base          = sampled(`"resourceVersion":"1"`, oneSpec, oneStatus)
	otherSpec     = sampled(`"resourceVersion":"2","generation":2`, twoSpec, oneStatus)
	otherStatus   = sampled(`"resourceVersion":"2"`, oneSpec, twoStatus)
	otherLabels   = sampled(`"labels":{"l":"1"}`, oneSpec, oneStatus)
	labelsInOrder = sampled(`"labels":{"l":"1","m":"2"}`, oneSpec, oneStatus)
	nullLabels    = sampled(`"labels":null`, oneSpec, oneStatus)
	otherNotes    = sampled(`"annotations":{"n":"1"}`, oneSpec, oneStatus)
	owned         = sampled(ownedBy, oneSpec, oneStatus)
	ownedAndNoted = sampled(strings.Replace(ownedBy, "{", `{"n":"1",`, 1), oneSpec, oneStatus)
	ownedByOther  = sampled(ownedBy2, oneSpec, oneStatus)
	deleting      = sampled(`"deletionTimestamp":"2026-01-01T00:00:00Z"`, oneSpec, oneStatus)
	oneFinalizer  = sampled(`"finalizers":["f"]`, oneSpec, oneStatus)
	twoFinalizers = sampled(`"finalizers":["f","g"]`, oneSpec, oneStatus)
	noSpec        = sampled("", oneStatus)
	noSpec2       = sampled("", twoStatus)
	nullSpec      = sampled("", `"spec":null`, oneStatus)
	emptySpec     = sampled("", `"spec":{}`, oneStatus)
	noStatus      = sampled("", oneSpec)
	nullStatus    = sampled("", oneSpec, `"status":null`)
	config        = configured(`"resourceVersion":"1"`, oneData)
	configData    = configured(`"resourceVersion":"2"`, twoData)
	configLabels  = configured(`"labels":{"l":"1"}`, oneData)
	configNotes   = configured(`"annotations":{"l":"1"}`, oneData)
	configBinary  = configured("", oneData, `"binaryData":{"z":"AA=="}`)
	configNull    = configured(`"labels":null`, oneData, `"binaryData":null`)
	configKept    = configured(`"resourceVersion":"9","generation":9,"managedFields":[{}]`, oneData)
)

const absent = `null`

func change(t *testing.T, operation core.Operation, subresource, before, after string) *core.Change {
	t.Helper()
	return &core.Change{Operation: operation, Subresource: subresource, Old: decode(t, before), New: decode(t, after)}
}

// verdicts are the results of the two filters that compare.
type verdicts struct{ spec, status bool }

const (
	create  = core.OperationCreate
	update  = core.OperationUpdate
	remove  = core.OperationDelete
	connect = core.OperationConnect
)

type filterTest struct {
	name          string
	operation     core.Operation
	subresource   string
	before, after string
	want          verdicts
}

// Each filter passes the changes of its field, of the selection and of the life of an object, and
// nothing else.
func TestComparingFilters(t *testing.T) {
	t.Parallel()

	never := verdicts{}
	always := verdicts{true, true}
	spec := verdicts{spec: true}
	status := verdicts{status: true}
	for _, tt := range []filterTest{
		// The beginning and the end of an object.
		{"create", create, "", absent, base, always},
		{"create without spec", create, "", absent, config, always},
		{"delete", remove, "", base, absent, always},
		{"delete with both states", remove, "", base, base, always},
		{"deletion begins", update, "", base, deleting, always},
		{"deletion goes on", update, "", deleting, deleting, never},
		{"deletion is taken back", update, "", deleting, base, never},
		{"last finalizer", update, "", oneFinalizer, base, always},
		{"all finalizers at once", update, "", twoFinalizers, base, always},
		{"not the last finalizer", update, "", twoFinalizers, oneFinalizer, never},
		{"first finalizer", update, "", base, oneFinalizer, never},
		// The main resource: the spec.
		{"nothing", update, "", base, base, never},
		{"spec", update, "", base, otherSpec, spec},
		{"spec back", update, "", otherSpec, base, spec},
		{"status through the resource", update, "", base, otherStatus, never},
		{"annotation of an object with spec", update, "", base, otherNotes, never},
		{"spec appears", update, "", noSpec, base, spec},
		{"spec goes", update, "", base, noSpec, spec},
		{"spec becomes null", update, "", base, nullSpec, spec},
		{"absent and null are the same spec", update, "", noSpec, nullSpec, never},
		{"absent and empty are not the same spec", update, "", noSpec, emptySpec, spec},
		// The main resource with an equal spec: the object may enter or leave a selection, or
		// change its owner.
		{"labels appear", update, "", base, otherLabels, spec},
		{"labels go", update, "", otherLabels, base, spec},
		{"one label more", update, "", otherLabels, labelsInOrder, spec},
		{"absent and null are the same labels", update, "", base, nullLabels, never},
		{"owner appears", update, "", base, owned, spec},
		{"owner goes", update, "", owned, base, spec},
		{"another owner", update, "", owned, ownedByOther, spec},
		{"the same owner", update, "", owned, owned, never},
		{"another annotation beside the owner", update, "", owned, ownedAndNoted, never},
		{"labels through the status", update, "status", base, otherLabels, never},
		{"labels through another subresource", update, "scale", base, otherLabels, never},
		// The main resource without spec: everything but bookkeeping.
		{"config: nothing", update, "", config, config, never},
		{"config: data", update, "", config, configData, spec},
		{"config: labels", update, "", config, configLabels, spec},
		{"config: annotations", update, "", config, configNotes, spec},
		{"config: one more field", update, "", config, configBinary, spec},
		{"config: one field less", update, "", configBinary, config, spec},
		{"config: null is absent", update, "", config, configNull, never},
		{"config: absent is null", update, "", configNull, config, never},
		{"config: bookkeeping", update, "", config, configKept, never},
		{"without spec: status", update, "", noSpec, noSpec2, spec},
		// The status subresource.
		{"status", update, "status", base, otherStatus, status},
		{"status: nothing", update, "status", base, base, never},
		{"status: spec", update, "status", base, otherSpec, never},
		{"status: appears", update, "status", noStatus, base, status},
		{"status: goes", update, "status", base, noStatus, status},
		{"status: absent and null", update, "status", noStatus, nullStatus, never},
		{"status: created", create, "status", absent, base, never},
		{"status: deleted", remove, "status", base, absent, never},
		// Subresources other than the status, which a filter sees only if the watch names them.
		{"scale", update, "scale", base, otherSpec, spec},
		{"scale as before", update, "scale", base, base, never},
		{"scale: a late status", update, "scale", base, otherStatus, never},
		{"scale without the state before", update, "scale", absent, base, spec},
		{"finalizer through scale", update, "scale", oneFinalizer, base, never},
		{"approval", update, "approval", base, otherStatus, spec},
		{"approval as before", update, "approval", base, base, never},
		{"resize", update, "resize", base, otherSpec, spec},
		{"binding", create, "binding", absent, base, spec},
		{"eviction", create, "eviction", absent, base, spec},
		{"a deleted subresource", remove, "other", base, absent, spec},
		{"connect to a subresource", connect, "exec", absent, base, spec},
		{"an operation of the future", "PATCH", "scale", base, otherSpec, never},
		// Writes that never count.
		{"connect", connect, "", absent, base, never},
		{"connect to the status", connect, "status", base, otherStatus, never},
		{"an operation of the future", "PATCH", "", base, otherSpec, never},
		// In doubt a write counts.
		{"update without the state before", update, "", absent, base, always},
		{"update without the state after", update, "", base, absent, always},
		{"update without any state", update, "", absent, absent, always},
		{"status without the state before", update, "status", absent, base, status},
	} {
		t.Run(tt.name, func(t *testing.T) { t.Parallel(); tt.check(t) })
	}
}

func (tt *filterTest) check(t *testing.T) {
	t.Helper()

	c := change(t, tt.operation, tt.subresource, tt.before, tt.after)
	got := verdicts{core.SpecChanged(c), core.StatusChanged(c)}
	if got != tt.want {
		t.Errorf("verdicts are %+v, want %+v", got, tt.want)
	}

	if got, want := core.Changed(c), tt.want.spec || tt.want.status; got != want {
		t.Errorf("Changed = %v, want %v", got, want)
	}
	c.DryRun = true
	if core.Changed(c) {
		t.Error("a dry run counts as changed")
	}
}

// Foreign objects must not make a decision slow: a quadratic comparison of these takes minutes.
func TestDecisionsAreLinear(t *testing.T) {
	t.Parallel()

	wide := func(last string) string {
		var b strings.Builder
		for i := range 100_000 {
			fmt.Fprintf(&b, `"%d":1,`, i)
		}
		return `{"metadata":{"labels":{` + b.String() + `"l":"1"}},"data":{` + b.String() + `"last":` + last + `}}`
	}

	start := time.Now()
	c := change(t, update, "", wide("1"), wide("2"))
	if !core.Changed(c) {
		t.Error("the change does not count")
	}

	if took := time.Since(start); took > 3*time.Minute { // Seconds on an idle machine.
		t.Errorf("took %v", took)
	}
}

func FuzzFilters(f *testing.F) {
	f.Add("UPDATE", "", []byte(base), []byte(otherSpec))
	f.Add("UPDATE", "status", []byte(base), []byte(otherStatus))
	f.Add("UPDATE", "", []byte(config), []byte(configData))
	f.Add("UPDATE", "", []byte(owned), []byte(otherLabels))
	f.Add("DELETE", "", []byte(oneFinalizer), []byte(absent))

	f.Fuzz(func(t *testing.T, operation, subresource string, before, after []byte) {
		o, errOld := core.DecodeObject(before)
		n, errNew := core.DecodeObject(after)
		if errOld == nil && errNew == nil {
			checkFilterLaws(t, &core.Change{
				Operation: core.Operation(operation), Subresource: subresource, Old: o, New: n,
			})
		}
	})
}

func checkFilterLaws(t *testing.T, c *core.Change) {
	t.Helper()

	if core.Changed(c) && c.Subresource != "" && c.Subresource != "status" {
		t.Errorf("%q of subresource %q counts", c.Operation, c.Subresource)
	}

	o := c.Old
	n := c.New
	if o == nil || n == nil {
		return
	}

	unchanged := core.Change{Operation: update, Subresource: c.Subresource, Old: n, New: n}
	if core.Changed(&unchanged) {
		t.Errorf("%+v counts as changed against itself", n)
	}

	// The opposite write changes the same, except at the ends of an object's life.
	back := core.Change{Operation: update, Subresource: c.Subresource, Old: n, New: o}
	lives := o.Deleting == n.Deleting && (o.Finalizers == 0) == (n.Finalizers == 0)
	if lives && c.Operation == update && core.Changed(c) != core.Changed(&back) {
		t.Errorf("%+v counts: %v, and back: %v", c, core.Changed(c), core.Changed(&back))
	}
}
