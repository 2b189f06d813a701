package subresources

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// registerDenial adds a webhook that refuses objects with the label denied, and returns when it
// does.
func (s *scene) registerDenial() {
	s.t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(deny))
	s.t.Cleanup(server.Close)
	s.create(&admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "denial"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "denial.example.com",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      new(server.URL),
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*"},
				},
			}},
			ObjectSelector:          &metav1.LabelSelector{MatchLabels: map[string]string{"denied": "true"}},
			SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
		}},
	})
	lab.Eventually(s.t, 3*time.Minute, "the other webhook denies", func() bool {
		status, _ := s.do(http.MethodPost, ofCore("configmaps", "")+"?dryRun=All", plainJSON,
			`{"metadata":{"generateName":"probe-","labels":{"denied":"true"}}}`)
		return status == http.StatusForbidden
	})
}

// deny refuses every review.
func deny(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{
		UID: review.Request.UID, Result: &metav1.Status{Code: http.StatusForbidden, Message: "denied"},
	}
	review.Request = nil
	w.Header().Set("Content-Type", plainJSON)
	_ = json.NewEncoder(w).Encode(review) // A peer that has gone sees no answer.
}
