package admissiontest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/admission/admissiontest"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// pod returns a Pod of an image, nil without one.
func pod(image string) map[string]any {
	if image == "" {
		return nil
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"namespace": "default", "name": "demo"}, "spec": map[string]any{"image": image},
	}
}

// send returns the events that a webhook makes of a request.
func send(request *http.Request) (events []string) {
	acceptor := core.AcceptorFunc(func(manager core.Manager, e core.WatchEvent) core.Outcome {
		events = append(events, fmt.Sprint(manager, " ", e.Operation, " ", e.WatchedGVK.Kind, " ", e.Watched))
		return core.Accepted
	})
	webhook, err := admission.New(acceptor, admission.Options{})
	if err != nil {
		panic(err)
	}

	answer := httptest.NewRecorder()
	webhook.ServeHTTP(answer, request)
	if answer.Code != http.StatusOK {
		panic(answer.Body)
	}

	return events
}

// A request between two states of an object is the review that an API server sends for that write.
func TestRequest(t *testing.T) {
	for _, c := range []struct {
		before, after string
		want          []string
	}{
		{"", "v1", []string{"kyma CREATE Pod default/demo"}},
		{"v1", "v2", []string{"kyma UPDATE Pod default/demo"}},
		{"v1", "v1", nil},
		{"v1", "", []string{"kyma DELETE Pod default/demo"}},
	} {
		got := send(admissiontest.Request(t.Context(), "kyma", pod(c.before), pod(c.after)))
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("from %q to %q (-want +got):\n%s", c.before, c.after, diff)
		}
	}
}

func TestRequestNeedsAnObject(t *testing.T) {
	for name, object := range map[string]map[string]any{"none": nil, "no name": {"kind": "Pod"}, "no JSON": {
		"kind": "Pod", "metadata": map[string]any{"name": "x"}, "spec": func() {},
	}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()

			admissiontest.Request(t.Context(), "kyma", nil, object)
		}()
	}
}

func ExampleRequest() {
	object := func(image string) map[string]any {
		return map[string]any{
			"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "demo"}, "spec": map[string]any{"image": image},
		}
	}

	acceptor := core.AcceptorFunc(func(manager core.Manager, event core.WatchEvent) core.Outcome {
		fmt.Println(manager, event.Operation, event.WatchedGVK.Kind, event.Watched.Name)
		return core.Accepted
	})
	webhook, err := admission.New(acceptor, admission.Options{})
	if err != nil {
		panic(err)
	}

	webhook.ServeHTTP(httptest.NewRecorder(),
		admissiontest.Request(context.Background(), "my-operator", object("v1"), object("v2")))
	// Output: my-operator UPDATE Pod demo
}
