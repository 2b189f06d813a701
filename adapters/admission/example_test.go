package admission_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// A handler gives its events to an acceptor, such as an outbox.
func Example() {
	acceptor := core.AcceptorFunc(func(manager core.Manager, event core.WatchEvent) core.Outcome {
		fmt.Printf("for %s: %s %s %s\n", manager, event.Operation, event.WatchedGVK.Kind, event.Watched)

		return core.Accepted
	})

	handler, err := admission.New(acceptor, admission.Options{
		Serves: func(manager core.Manager) bool { return manager == "lifecycle-manager" },
	})
	if err != nil {
		fmt.Println(err)

		return
	}

	request := httptest.NewRequest(http.MethodPost, "/validate/lifecycle-manager", strings.NewReader(`{
		"kind": "AdmissionReview",
		"apiVersion": "admission.k8s.io/v1",
		"request": {
			"uid": "705ab4f5",
			"kind": {"group": "operator.kyma-project.io", "version": "v1beta2", "kind": "Kyma"},
			"operation": "UPDATE",
			"oldObject": {"metadata": {"namespace": "kyma-system", "name": "default"}, "spec": {"channel": "regular"}},
			"object": {"metadata": {"namespace": "kyma-system", "name": "default"}, "spec": {"channel": "fast"}}
		}
	}`))

	request.Header.Set("Content-Type", "application/json")

	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, request)
	fmt.Println(answer.Code, answer.Body)
	// Output:
	// for lifecycle-manager: UPDATE Kyma kyma-system/default
	// 200 {"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"705ab4f5","allowed":true,"status":{"metadata":{},"status":"Success","message":"accepted: an event will be sent to the manager","code":200}}}
}

// The configuration makes the API server of a runtime send the changes of a resource.
func ExampleWebhookConfiguration() {
	agent := httptest.NewTLSServer(http.NotFoundHandler())
	defer agent.Close()

	watches := []watch.Watch{{
		Name:     types.NamespacedName{Namespace: "kcp-system", Name: "kyma"},
		Manager:  "lifecycle-manager",
		Resource: schema.GroupVersionResource{Group: "operator.kyma-project.io", Version: "*", Resource: "kymas"},
		Selector: watch.Selector{Labels: map[string]string{"operator.kyma-project.io/watched-by": "kyma"}},
	}}

	endpoint := admission.Endpoint{
		Service:  types.NamespacedName{Namespace: "kyma-system", Name: "agent"},
		CABundle: bundleOf(agent),
	}

	configuration, err := admission.WebhookConfiguration("watcher", endpoint, watches, admission.ConfigurationOptions{})
	if err != nil {
		fmt.Println(err)

		return
	}

	for _, webhook := range configuration.Webhooks {
		fmt.Println(webhook.Name)
		fmt.Println(webhook.Rules[0].Resources, webhook.Rules[0].Operations)
		fmt.Println(*webhook.ClientConfig.Service.Path, *webhook.FailurePolicy)
	}
	// Output:
	// kcp-system.kyma.operator.kyma-project.io
	// [kymas] [CREATE UPDATE DELETE]
	// /validate/lifecycle-manager Ignore
	// kcp-system.kyma.scale.kyma-project.io
	// [kymas/scale] [CREATE UPDATE DELETE]
	// /validate/lifecycle-manager Ignore
	// lifecycle-manager.definitions.kyma-project.io
	// [customresourcedefinitions] [DELETE]
	// /validate/lifecycle-manager/custom.resource.definition Ignore
}
