package core_test

import (
	"errors"
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/core"
)

func ExampleParseManager() {
	manager, err := core.ParseManager("lifecycle-manager")
	fmt.Println(manager, err)

	_, err = core.ParseManager("../admin")
	fmt.Println(errors.Is(err, core.ErrInvalidManager))
	fmt.Println(err)
	// Output:
	// lifecycle-manager <nil>
	// true
	// manager is not a DNS-1123 label (1 to 63 of a-z, 0-9 and '-', neither end a '-'): "../admin"
}

func ExampleSpecChanged() {
	before, _ := core.DecodeObject([]byte(`{"metadata":{"generation":1},"spec":{"replicas":1,"image":"a"}}`))
	after, _ := core.DecodeObject([]byte(`{"metadata":{"generation":1},"spec":{"image":"a","replicas":1.0}}`))
	scaled, _ := core.DecodeObject([]byte(`{"metadata":{"generation":2},"spec":{"replicas":2,"image":"a"}}`))

	fmt.Println(core.SpecChanged(&core.Change{Operation: core.OperationUpdate, Old: before, New: after}))
	fmt.Println(core.SpecChanged(&core.Change{Operation: core.OperationUpdate, Old: before, New: scaled}))
	// Output:
	// false
	// true
}

// A watch of some objects: those with a label, when their spec or status changes.
func ExampleAll() {
	filter := core.All(core.Labels(map[string]string{"app": "web"}), core.Changed)

	web, _ := core.DecodeObject([]byte(`{"metadata":{"name":"web","labels":{"app":"web"}},"spec":{}}`))
	left, _ := core.DecodeObject([]byte(`{"metadata":{"name":"web"},"spec":{}}`))

	fmt.Println("created:", filter(&core.Change{Operation: core.OperationCreate, New: web}))
	fmt.Println("dry run:", filter(&core.Change{Operation: core.OperationCreate, New: web, DryRun: true}))
	fmt.Println("written again:", filter(&core.Change{Operation: core.OperationUpdate, Old: web, New: web}))
	fmt.Println("label removed:", filter(&core.Change{Operation: core.OperationUpdate, Old: web, New: left}))
	// Output:
	// created: true
	// dry run: false
	// written again: false
	// label removed: true
}

// The API server counts generations of most kinds. Their specs need no comparison.
func ExampleGenerationChanged() {
	before, _ := core.DecodeObject([]byte(`{"metadata":{"generation":1},"spec":{"replicas":1}}`))
	after, _ := core.DecodeObject([]byte(`{"metadata":{"generation":2},"spec":{"replicas":2}}`))

	fmt.Println(core.GenerationChanged(&core.Change{Operation: core.OperationUpdate, Old: before, New: before}))
	fmt.Println(core.GenerationChanged(&core.Change{Operation: core.OperationUpdate, Old: before, New: after}))
	// Output:
	// false
	// true
}

func ExampleParseOwner() {
	owner, err := core.ParseOwner("kcp-system/kyma-1")
	fmt.Println(owner, err)

	_, err = core.ParseOwner("kyma-1")
	fmt.Println(err)
	// Output:
	// kcp-system/kyma-1 <nil>
	// owner is not <namespace>/<name>: want one '/' in "kyma-1"
}
