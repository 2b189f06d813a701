package core_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// The objects that changes in tests are made of. Each differs from base in what its name says.
const (
	base           = `{"kind":"A","metadata":{"name":"a","generation":1,"resourceVersion":"1"},"spec":{"x":1,"y":["a"]},"status":{"s":1}}`
	otherSpec      = `{"kind":"A","metadata":{"name":"a","generation":2,"resourceVersion":"2"},"spec":{"x":2,"y":["a"]},"status":{"s":1}}`
	otherStatus    = `{"kind":"A","metadata":{"name":"a","generation":1,"resourceVersion":"2"},"spec":{"x":1,"y":["a"]},"status":{"s":2}}`
	otherLabels    = `{"kind":"A","metadata":{"name":"a","generation":1,"labels":{"l":"1"}},"spec":{"x":1,"y":["a"]},"status":{"s":1}}`
	otherNotation  = `{"spec": {"y":["\u0061"], "x":1.0e0 }, "status":{"s":10e-1},"metadata":{"name":"a","generation":1},"kind":"A"}`
	deleting       = `{"kind":"A","metadata":{"name":"a","generation":1,"deletionTimestamp":"2026-01-01T00:00:00Z"},"spec":{"x":1,"y":["a"]},"status":{"s":1}}`
	oneFinalizer   = `{"kind":"A","metadata":{"name":"a","generation":1,"finalizers":["f"]},"spec":{"x":1,"y":["a"]},"status":{"s":1}}`
	twoFinalizers  = `{"kind":"A","metadata":{"name":"a","generation":1,"finalizers":["f","g"]},"spec":{"x":1,"y":["a"]},"status":{"s":1}}`
	noSpec         = `{"kind":"A","metadata":{"name":"a","generation":1},"status":{"s":1}}`
	nullSpec       = `{"kind":"A","metadata":{"name":"a","generation":1},"spec":null,"status":{"s":1}}`
	emptySpec      = `{"kind":"A","metadata":{"name":"a","generation":1},"spec":{},"status":{"s":1}}`
	noStatus       = `{"kind":"A","metadata":{"name":"a","generation":1},"spec":{"x":1,"y":["a"]}}`
	nullStatus     = `{"kind":"A","metadata":{"name":"a","generation":1},"spec":{"x":1,"y":["a"]},"status":null}`
	config         = `{"kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"1","uid":"u"},"data":{"x":"1","y":"2"}}`
	configData     = `{"kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"2","uid":"u"},"data":{"x":"2","y":"2"}}`
	configLabels   = `{"kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"2","uid":"u","labels":{"l":"1"}},"data":{"x":"1","y":"2"}}`
	configNotes    = `{"kind":"ConfigMap","metadata":{"name":"a","uid":"u","annotations":{"l":"1"}},"data":{"x":"1","y":"2"}}`
	configBinary   = `{"kind":"ConfigMap","metadata":{"name":"a","uid":"u"},"data":{"x":"1","y":"2"},"binaryData":{"z":"AA=="}}`
	configNull     = `{"kind":"ConfigMap","metadata":{"name":"a","uid":"u","labels":null},"data":{"x":"1","y":"2"},"binaryData":null}`
	configNotation = `{"data":{"y":"\u0032", "x":"1"},"metadata":{"uid":"u","name":"a"},"kind":"ConfigMap"}`
	configKept     = `{"kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"9","generation":9,"uid":"u","managedFields":[{}]},"data":{"x":"1","y":"2"}}`
	absent         = `null`
)

func change(t *testing.T, operation core.Operation, subresource, before, after string) *core.Change {
	t.Helper()

	return &core.Change{Operation: operation, Subresource: subresource, Old: decode(t, before), New: decode(t, after)}
}

// verdicts are the answers of the three filters that compare.
type verdicts struct{ spec, status, generation bool }

func TestComparingFilters(t *testing.T) {
	t.Parallel()

	const (
		create  = core.OperationCreate
		update  = core.OperationUpdate
		remove  = core.OperationDelete
		connect = core.OperationConnect
	)

	always, never := verdicts{true, true, true}, verdicts{}

	tests := []struct {
		name          string
		operation     core.Operation
		subresource   string
		before, after string
		want          verdicts
	}{
		// The beginning and the end of an object.
		{"create", create, "", absent, base, always},
		{"create without spec", create, "", absent, config, always},
		{"delete", remove, "", base, absent, always},
		{"delete, as some API servers show it", remove, "", base, base, always},
		{"deletion begins", update, "", base, deleting, always},
		{"deletion goes on", update, "", deleting, deleting, never},
		{"deletion is taken back", update, "", deleting, base, never},
		{"last finalizer", update, "", oneFinalizer, base, always},
		{"all finalizers at once", update, "", twoFinalizers, base, always},
		{"not the last finalizer", update, "", twoFinalizers, oneFinalizer, never},
		{"first finalizer", update, "", base, oneFinalizer, never},

		// The main resource: the spec.
		{"nothing", update, "", base, base, never},
		{"spec", update, "", base, otherSpec, verdicts{spec: true, generation: true}},
		{"spec back", update, "", otherSpec, base, verdicts{spec: true, generation: true}},
		{"status through the resource", update, "", base, otherStatus, never},
		{"labels of an object with spec", update, "", base, otherLabels, never},
		{"notation", update, "", base, otherNotation, never},
		{"spec appears", update, "", noSpec, base, verdicts{spec: true}},
		{"spec goes", update, "", base, noSpec, verdicts{spec: true}},
		{"spec becomes null", update, "", base, nullSpec, verdicts{spec: true}},
		{"absent and null are the same spec", update, "", noSpec, nullSpec, never},
		{"absent and empty are not the same spec", update, "", noSpec, emptySpec, verdicts{spec: true}},

		// The main resource, without spec: all but bookkeeping. It does not count generations.
		{"config: nothing", update, "", config, config, verdicts{generation: true}},
		{"config: data", update, "", config, configData, verdicts{spec: true, generation: true}},
		{"config: labels", update, "", config, configLabels, verdicts{spec: true, generation: true}},
		{"config: annotations", update, "", config, configNotes, verdicts{spec: true, generation: true}},
		{"config: one more field", update, "", config, configBinary, verdicts{spec: true, generation: true}},
		{"config: one field less", update, "", configBinary, config, verdicts{spec: true, generation: true}},
		{"config: null is absent", update, "", config, configNull, verdicts{generation: true}},
		{"config: absent is null", update, "", configNull, config, verdicts{generation: true}},
		{"config: notation", update, "", config, configNotation, verdicts{generation: true}},
		{"config: bookkeeping", update, "", config, configKept, verdicts{generation: true}},
		{"without spec: status", update, "", noSpec, `{"kind":"A","metadata":{"name":"a","generation":1},"status":{"s":2}}`, verdicts{spec: true}},

		// The status subresource.
		{"status", update, "status", base, otherStatus, verdicts{status: true}},
		{"status: nothing", update, "status", base, base, never},
		{"status: notation", update, "status", base, otherNotation, never},
		{"status: spec", update, "status", base, otherSpec, never},
		{"status: appears", update, "status", noStatus, base, verdicts{status: true}},
		{"status: goes", update, "status", base, noStatus, verdicts{status: true}},
		{"status: absent and null", update, "status", noStatus, nullStatus, never},
		{"status: created", create, "status", absent, base, never},
		{"status: deleted", remove, "status", base, absent, never},

		// What never counts.
		{"scale", update, "scale", base, otherSpec, never},
		{"finalizer through a subresource", update, "scale", oneFinalizer, base, never},
		{"binding", create, "binding", absent, base, never},
		{"eviction", create, "eviction", absent, base, never},
		{"connect", connect, "", absent, base, never},
		{"connect to a subresource", connect, "exec", absent, base, never},
		{"connect to the status", connect, "status", base, otherStatus, never},
		{"an operation of the future", "PATCH", "", base, otherSpec, never},

		// In doubt it counts.
		{"update without the state before", update, "", absent, base, always},
		{"update without the state after", update, "", base, absent, always},
		{"update without any state", update, "", absent, absent, always},
		{"status without the state before", update, "status", absent, base, verdicts{status: true}},
	}

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			c := change(t, tt.operation, tt.subresource, tt.before, tt.after)
			got := verdicts{core.SpecChanged(c), core.StatusChanged(c), core.GenerationChanged(c)}

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
		})
	}
}

func TestOperations(t *testing.T) {
	t.Parallel()

	filter := core.Operations(core.OperationCreate, core.OperationDelete)

	for operation, want := range map[core.Operation]bool{
		core.OperationCreate: true, core.OperationUpdate: false, core.OperationDelete: true, core.OperationConnect: false, "": false,
	} {
		if got := filter(&core.Change{Operation: operation}); got != want {
			t.Errorf("%q passes: %v, want %v", operation, got, want)
		}
	}

	if core.Operations()(&core.Change{Operation: core.OperationCreate}) {
		t.Error("a change passes though no operation is allowed")
	}
}

func TestLabels(t *testing.T) {
	t.Parallel()

	labelled := func(labels string) string { return `{"metadata":{"labels":` + labels + `}}` }
	both := map[string]string{"a": "1", "b": ""}

	tests := map[string]struct {
		want          map[string]string
		before, after string
		passes        bool
	}{
		"all of them":             {both, absent, labelled(`{"a":"1","b":"","c":"3"}`), true},
		"one is missing":          {both, absent, labelled(`{"a":"1"}`), false},
		"another value":           {both, absent, labelled(`{"a":"2","b":""}`), false},
		"no labels":               {both, absent, `{}`, false},
		"null labels":             {both, absent, labelled(`null`), false},
		"leaves the selection":    {both, labelled(`{"a":"1","b":""}`), `{}`, true},
		"enters the selection":    {both, `{}`, labelled(`{"a":"1","b":""}`), true},
		"deleted":                 {both, labelled(`{"a":"1","b":""}`), absent, true},
		"half before, half after": {both, labelled(`{"a":"1"}`), labelled(`{"b":""}`), false},
		"no object":               {both, absent, absent, false},
		"nothing wanted":          {nil, absent, `{}`, true},
		"nothing wanted, nothing": {map[string]string{}, absent, absent, true},
	}

	for name, tt := range tests {
		if got := core.Labels(tt.want)(change(t, core.OperationUpdate, "", tt.before, tt.after)); got != tt.passes {
			t.Errorf("%s: passes = %v, want %v", name, got, tt.passes)
		}
	}
}

func TestLabelsKeepsNoReferenceToItsMap(t *testing.T) {
	t.Parallel()

	labels := map[string]string{"a": "1"}
	filter := core.Labels(labels)

	labels["a"] = "2"

	if !filter(change(t, core.OperationCreate, "", absent, `{"metadata":{"labels":{"a":"1"}}}`)) {
		t.Error("the filter follows changes of the map that it was made from")
	}
}

// The laws of Boolean algebra, for all filters over all changes.
func TestCombinatorLaws(t *testing.T) {
	t.Parallel()

	changes := allChanges(t)
	filters := map[string]core.Filter{
		"spec": core.SpecChanged, "status": core.StatusChanged, "generation": core.GenerationChanged, "persisted": core.NotDryRun,
		"created": core.Operations(core.OperationCreate), "labelled": core.Labels(map[string]string{"l": "1"}),
		"all": core.All(), "none": core.Any(),
	}

	for name, f := range filters {
		same(t, changes, name+" of all", core.All(f), f)
		same(t, changes, name+" of any", core.Any(f), f)
		same(t, changes, name+" and true", core.All(f, core.All()), f)
		same(t, changes, name+" or false", core.Any(f, core.Any()), f)
		same(t, changes, name+" and its opposite", core.All(f, core.Not(f)), core.Any())
		same(t, changes, name+" or its opposite", core.Any(f, core.Not(f)), core.All())
		same(t, changes, name+" denied twice", core.Not(core.Not(f)), f)

		for other, g := range filters {
			pair := name + " and " + other
			same(t, changes, pair+": order", core.All(f, g), core.All(g, f))
			same(t, changes, pair+": De Morgan", core.Not(core.All(f, g)), core.Any(core.Not(f), core.Not(g)))
			same(t, changes, pair+": De Morgan's other", core.Not(core.Any(f, g)), core.All(core.Not(f), core.Not(g)))
			same(t, changes, pair+": absorption", core.All(f, core.Any(f, g)), f)
		}
	}

	same(t, changes, "Changed", core.Changed, core.All(core.NotDryRun, core.Any(core.SpecChanged, core.StatusChanged)))
}

func same(t *testing.T, changes []*core.Change, law string, f, g core.Filter) {
	t.Helper()

	for _, c := range changes {
		if f(c) != g(c) {
			t.Errorf("%s: does not hold for %+v", law, c)
		}
	}
}

// allChanges returns every combination of the objects above with each operation and subresource.
func allChanges(t *testing.T) (changes []*core.Change) {
	t.Helper()

	objects := []*core.Object{nil}
	for _, text := range []string{base, otherSpec, otherStatus, otherLabels, deleting, oneFinalizer, noSpec, config, configData} {
		objects = append(objects, decode(t, text))
	}

	operations := []core.Operation{core.OperationCreate, core.OperationUpdate, core.OperationDelete, core.OperationConnect, ""}
	for _, operation := range operations {
		for _, subresource := range []string{"", "status", "scale"} {
			for i, before := range objects {
				for j, after := range objects {
					changes = append(changes, &core.Change{
						Operation: operation, Subresource: subresource, DryRun: (i+j)%2 == 0, Old: before, New: after,
					})
				}
			}
		}
	}

	return changes
}

func TestChangeObject(t *testing.T) {
	t.Parallel()

	before, after := &core.Object{Generation: 1}, &core.Object{Generation: 2}

	for _, tt := range []struct{ before, after, want *core.Object }{
		{nil, nil, nil}, {before, nil, before}, {nil, after, after}, {before, after, after},
	} {
		c := core.Change{Old: tt.before, New: tt.after}
		if got := c.Object(); got != tt.want {
			t.Errorf("Object of %+v = %v, want %v", c, got, tt.want)
		}
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

		return `{` + b.String() + `"metadata":{` + b.String() + `"labels":{` + b.String() + `"l":"1"}},"last":` + last + `}`
	}

	start := time.Now()
	c := change(t, core.OperationUpdate, "", wide("1"), wide("2"))

	if !core.Changed(c) || !core.Labels(map[string]string{"l": "1"})(c) {
		t.Error("the change does not count")
	}

	if core.Changed(change(t, core.OperationUpdate, "", wide("1"), " "+wide("1.0"))) {
		t.Error("another notation counts as a change")
	}

	if took := time.Since(start); took > 3*time.Minute { // Seconds, if nobody else wants the processor.
		t.Errorf("took %v", took)
	}
}

func FuzzFilters(f *testing.F) {
	f.Add("UPDATE", "", []byte(base), []byte(otherSpec))
	f.Add("UPDATE", "status", []byte(base), []byte(otherStatus))
	f.Add("UPDATE", "", []byte(config), []byte(configNotation))
	f.Add("DELETE", "", []byte(oneFinalizer), []byte(absent))

	f.Fuzz(func(t *testing.T, operation, subresource string, before, after []byte) {
		o, errOld := core.DecodeObject(before)
		n, errNew := core.DecodeObject(after)

		if errOld != nil || errNew != nil {
			return
		}

		c := core.Change{Operation: core.Operation(operation), Subresource: subresource, Old: o, New: n}
		back := core.Change{Operation: core.OperationUpdate, Subresource: subresource, Old: n, New: o}
		unchanged := core.Change{Operation: core.OperationUpdate, Subresource: subresource, Old: n, New: n}

		if passed := core.Changed(&c); passed && subresource != "" && subresource != "status" {
			t.Errorf("%q of subresource %q counts", operation, subresource)
		}

		if n != nil && core.Changed(&unchanged) {
			t.Errorf("%s counts as changed against itself", after)
		}

		// What a write changes, the opposite write changes back, but for the ends of an object's life.
		lives := o != nil && n != nil && o.Deleting == n.Deleting && (o.Finalizers == 0) == (n.Finalizers == 0)
		if lives && operation == string(core.OperationUpdate) && core.Changed(&c) != core.Changed(&back) {
			t.Errorf("%s to %s counts: %v, and back: %v", before, after, core.Changed(&c), core.Changed(&back))
		}
	})
}
