package core_test

import (
	"fmt"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// source is a change source: it offers the changes of a watch to an outbox.
type source struct {
	manager core.Manager
	filter  core.Filter
	outbox  core.Acceptor
}

// observe offers a change, if it matters.
func (s *source) observe(change *core.Change) error {
	if !s.filter(change) {
		return nil
	}

	event, err := change.Event(time.Now())
	if err != nil {
		return err
	}

	event.Owner, err = change.Owner()
	s.outbox.Accept(s.manager, event)

	return err
}

// A change source needs package core only. It makes objects from JSON, or from a decoded map such
// as the content of an unstructured object.
func Example_changeSource() {
	outbox := core.AcceptorFunc(func(manager core.Manager, event core.WatchEvent) core.Outcome {
		fmt.Println(manager, event.Operation, event.WatchedGVK.Kind, event.Watched, "of", event.Owner)

		return core.Accepted
	})
	source := source{manager: "lifecycle-manager", filter: core.Changed, outbox: outbox}

	before, _ := core.DecodeObject([]byte(`{"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": {"namespace": "default", "name": "w",
			"annotations": {"operator.kyma-project.io/owned-by": "kcp-system/runtime-1"}},
		"spec": {"size": 1}}`))
	after, _ := core.NewObject(map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"namespace": "default", "name": "w"}, "spec": map[string]any{"size": 2},
	})

	fmt.Println(source.observe(&core.Change{Operation: core.OperationUpdate, Old: before, New: before}))
	fmt.Println(source.observe(&core.Change{Operation: core.OperationUpdate, Old: before, New: after}))
	// Output:
	// <nil>
	// lifecycle-manager UPDATE Widget default/w of kcp-system/runtime-1
	// <nil>
}
