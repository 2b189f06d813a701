package admission_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// FuzzReview sends bytes that no API server made. The answer must be a review that allows the
// write, or a Status. There must be no panic, and no event with an empty name.
func FuzzReview(f *testing.F) {
	f.Add(update(f, widget("", `"spec":{"a":1}`), widget(`"finalizers":["x"],"labels":{"a":"b"}`,
		`"spec":{"a":[1e3,null]}`)))
	f.Add(update(f, widget(`"annotations":{"operator.kyma-project.io/owned-by":"a/b"}`),
		widget(`"deletionTimestamp":"x"`)))
	f.Add(reviewOf(f, func(q *admissionv1.AdmissionRequest) {
		q.Operation = admissionv1.Create
		q.Name = ""
		q.Object = raw(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"a-"},"data":{"k":"\u00fc\n\"\\"}}`)
	}))

	f.Add(reviewOf(f, func(q *admissionv1.AdmissionRequest) {
		q.Operation = admissionv1.Delete
		q.DryRun = new(true)
		q.OldObject = raw(widget(`"finalizers":[]`))
		q.Options = raw(`{"kind":"DeleteOptions","apiVersion":"meta.k8s.io/v1"}`)
	}))

	f.Add(reviewOf(f, func(q *admissionv1.AdmissionRequest) {
		q.Operation = admissionv1.Update
		q.SubResource = "status"
		q.OldObject = raw(widget("", `"status":{"a":-0.5e-7}`))
		q.Object = raw(widget("", `"status":{"b":true}`))
	}))

	f.Add(reviewOf(f, func(q *admissionv1.AdmissionRequest) {
		q.UID = "\"<\u2028"
		q.Operation = admissionv1.Connect
		q.SubResource = "exec"
		q.Object = raw(`{"kind":"PodExecOptions","apiVersion":"v1","command":["sh"]}`)
	}))

	f.Add([]byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1","request":{"uid":"1","operation":"CREATE"}}`))
	f.Add([]byte(`{"request":{"uid":"1","operation":"UPDATE","object":{"metadata":{"name":"a"}}},"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`))
	f.Add([]byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"` + "\xff" + `","operation":"DELETE","name":"` + "\xff" + `"}}`))
	f.Add([]byte(strings.Repeat(`{"request":`, 100)))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, body []byte) {
		got := newInbox()
		h := newHandler(t, got, admission.Options{Hooks: admission.Hooks{
			Panicked: func(p hook.Panic) { t.Errorf("panic in %s", p.Place) },
		}})
		w := post(h, "/validate/kyma", body)
		switch w.Code {
		case http.StatusOK:
			readAnswer(t, w.Body.Bytes())
			if !json.Valid(body) {
				t.Errorf("%q is not JSON, and was answered %s", body, w.Body)
			}
		case http.StatusBadRequest:
			statusOf(t, w.Code, w.Header(), w.Body.Bytes())
		default:
			t.Errorf("answered %d %s, want 200 or 400", w.Code, w.Body)
		}

		for _, event := range got.events {
			if event.Resync != (w.Code != http.StatusOK) || !event.Resync && event.Watched.Name == "" {
				t.Errorf("answered %d, and sent %+v", w.Code, event)
			}
		}
	})
}

// FuzzManagerSegment sends paths that a request line can have. Only a DNS-1123 label is a manager.
func FuzzManagerSegment(f *testing.F) {
	for _, path := range []string{
		"/validate/kyma", "/validate/../kyma", "/validate/%2e%2e", "/validate/a%2Fb", "/validate/", "//validate/a", "*", "",
		"/validate/" + strings.Repeat("a", 300), "/validate/k\u00fc", "http://host/validate/a", "/validate/a?b#c",
		"/validate/%zz",
	} {
		f.Add(path)
	}

	f.Fuzz(func(t *testing.T, path string) {
		r, err := http.NewRequest(http.MethodPost, path, strings.NewReader(
			`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"1","operation":"DELETE","name":"a"}}`))
		if err != nil {
			t.Skip("no URL")
		}

		r.RequestURI = path
		r.Header.Set("Content-Type", "application/json")
		got := newInbox()
		w := serve(newHandler(t, got, admission.Options{}), r)
		switch w.Code {
		case http.StatusOK:
			if len(got.managers) != 1 || !isLabel(string(got.managers[0])) {
				t.Errorf("%q got through as %q", path, got.managers)
			}
		case http.StatusBadRequest, http.StatusNotFound:
			statusOf(t, w.Code, w.Header(), w.Body.Bytes())
		default:
			t.Errorf("%q answered %d, want 200, 400 or 404", path, w.Code)
		}
	})
}

func isLabel(text string) bool {
	return text != "" && len(text) <= 63 && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" &&
		strings.Trim(text, "-") == text
}
