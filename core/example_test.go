package core_test

import (
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/core"
)

func ExampleParseManager() {
	manager, err := core.ParseManager("lifecycle-manager")
	fmt.Println(manager, err)

	_, err = core.ParseManager("../admin")
	fmt.Println(core.IsPermanent(err), core.ReasonOf(err))
	fmt.Println(err)
	// Output:
	// lifecycle-manager <nil>
	// true invalid_manager
	// manager is not a DNS-1123 label (1 to 63 of a-z, 0-9 and '-', neither end a '-'): "../admin"
}

func ExampleChanged() {
	before, _ := core.DecodeObject([]byte(`{"metadata":{"generation":1},"spec":{"replicas":1,"image":"a"}}`))
	after, _ := core.DecodeObject([]byte(`{"metadata":{"generation":1},"spec":{"replicas":1,"image":"a"},"status":{"replicas":1}}`))
	scaled, _ := core.DecodeObject([]byte(`{"metadata":{"generation":2},"spec":{"replicas":2,"image":"a"}}`))

	fmt.Println(core.Changed(&core.Change{Operation: core.OperationUpdate, Old: before, New: after}))
	fmt.Println(core.Changed(&core.Change{Operation: core.OperationUpdate, Old: before, New: scaled}))
	// Output:
	// false
	// true
}
