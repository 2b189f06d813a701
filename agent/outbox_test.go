package agent

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// A field that the agent overwrites must not be among those that users set, and a new option of the
// outbox must be on one side.
func TestOutboxHasTheFreeFieldsOnly(t *testing.T) {
	t.Parallel()

	decided := strings.Fields("Managers ResyncFirst ResyncOwners MaxBatch DrainTimeout Epoch Heartbeat Disconnects RecheckAfter Hooks Logger")

	free := reflect.TypeFor[Outbox]()
	all := reflect.TypeFor[outbox.Options]()
	for field := range all.Fields() {
		_, isFree := free.FieldByName(field.Name)
		if isFree == slices.Contains(decided, field.Name) {
			t.Errorf("outbox.Options.%s is free: %t; want that the agent decides it, or that users do", field.Name, isFree)
		}
	}

	// Each field arrives under its own name.
	for i := range free.NumField() {
		field := free.Field(i)
		var set Outbox
		value := reflect.ValueOf(&set).Elem().Field(i)
		switch value.Kind() {
		case reflect.Func:
			value.Set(reflect.ValueOf(func() float64 { return 0 }))
		case reflect.Slice:
			value.Set(reflect.MakeSlice(field.Type, 1, 1))
		default:
			value.SetInt(7)
		}

		have := reflect.ValueOf(set.options())
		for n := range have.NumField() {
			arrives := !have.Field(n).IsZero()
			if want := all.Field(n).Name == field.Name; arrives != want {
				t.Errorf("with %s, outbox.Options.%s is set: %t, want %t", field.Name, all.Field(n).Name, arrives, want)
			}
		}
	}
}
