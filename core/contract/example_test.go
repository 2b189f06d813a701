package contract_test

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

func ExampleVersion_Encode() {
	event := core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: "default", Name: "settings"},
		WatchedGVK: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
	}

	body, err := contract.V2.Encode([]core.WatchEvent{event})
	fmt.Println("POST", contract.V2.Path("kyma"), err)
	fmt.Println(string(body))
	// Output:
	// POST /v2/kyma/event <nil>
	// {"watched":{"Namespace":"default","Name":"settings"},"watchedGvk":{"group":"","version":"v1","kind":"ConfigMap"}}
}

func ExampleVersion_Decode() {
	events, err := contract.V1.Decode([]byte(`{
		"owner": {"Namespace": "kcp-system", "Name": "runtime-1"},
		"watched": {"Namespace": "default", "Name": "settings"},
		"watchedGvk": {"group": "", "version": "v1", "kind": "ConfigMap"}
	}`))
	fmt.Println(events[0].Owner, events[0].WatchedGVK.Kind, events[0].Watched, err)

	_, err = contract.V1.Decode([]byte(`{"watched": {"Namespace": "default", "Name": "settings"}}`))
	fmt.Println(core.Reason(err), core.IsPermanent(err))
	fmt.Println(err)
	// Output:
	// kcp-system/runtime-1 ConfigMap default/settings <nil>
	// malformed true
	// malformed event: owner.Namespace is empty
}

func ExampleParseVersion() {
	_, err := contract.ParseVersion("v9")
	fmt.Println(err)
	// Output:
	// unknown contract "v9": want one of [v1 v2 v3]
}
