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

	batch := core.NewBatch(event)

	request, err := contract.V2.Encode(&batch)
	fmt.Println("POST", contract.V2.Path("kyma"), err)
	fmt.Println(string(request.Body))
	// Output: POST /v2/kyma/event <nil>
	// {"watched":{"Namespace":"default","Name":"settings"},"watchedGvk":{"group":"","version":"v1","kind":"ConfigMap"}}
}

func ExampleVersion_Decode() {
	batch, err := contract.V1.Decode([]byte(`{
		"owner": {"Namespace": "kcp-system", "Name": "runtime-1"},
		"watched": {"Namespace": "default", "Name": "settings"},
		"watchedGvk": {"group": "", "version": "v1", "kind": "ConfigMap"}
	}`))
	fmt.Println(batch.Events[0].Owner, batch.Events[0].WatchedGVK.Kind, batch.Events[0].Watched, err)

	_, err = contract.V1.Decode([]byte(`{"watched": {"Namespace": "default", "Name": "settings"}}`))
	fmt.Println(core.ReasonOf(err), core.IsPermanent(err))
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
