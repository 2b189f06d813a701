// Package admissiontest makes requests like an API server, for unit tests of filters and of
// programs with a webhook.
package admissiontest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Request returns the review of a write, as an API server sends it to the webhook of a manager. The
// objects are the content of unstructured objects, with apiVersion, kind and metadata.name. Without
// before, the write is a CREATE, without after a DELETE, and with both an UPDATE. Request panics if
// both are missing or if the content is not JSON.
func Request(ctx context.Context, manager core.Manager, before, after map[string]any) *http.Request {
	newest := after
	operation := admissionv1.Update

	switch {
	case before == nil:
		operation = admissionv1.Create
	case after == nil:
		newest = before
		operation = admissionv1.Delete
	}

	object := unstructured.Unstructured{Object: newest}
	review := admissionv1.AdmissionReview{Request: about(object, operation)}
	review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	review.Request.OldObject.Raw = raw(before)
	review.Request.Object.Raw = raw(after)

	body := bytes.NewReader(marshal(review))
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/validate/"+string(manager), body)
	r.Header.Set("Content-Type", runtime.ContentTypeJSON)

	return r
}

func about(object unstructured.Unstructured, operation admissionv1.Operation) *admissionv1.AdmissionRequest {
	kind := object.GroupVersionKind()
	if kind.Kind == "" || object.GetName() == "" {
		panic("admissiontest: an object needs a kind and a name")
	}

	dryRun := false
	plural := strings.ToLower(kind.Kind) + "s"
	return &admissionv1.AdmissionRequest{
		UID:       cmp.Or(object.GetUID(), "00000000-0000-4000-8000-000000000000"),
		Kind:      metav1.GroupVersionKind(kind),
		Resource:  metav1.GroupVersionResource{Group: kind.Group, Version: kind.Version, Resource: plural},
		Namespace: object.GetNamespace(), Name: object.GetName(), Operation: operation, DryRun: &dryRun,
	}
}

func raw(object map[string]any) []byte {
	if object == nil {
		return nil
	}
	return marshal(object)
}

func marshal(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("admissiontest: %v", err))
	}
	return text
}
