package lab

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// RegisterSlowWebhook allows all writes to ConfigMaps with the label delay=<delay>, after that
// delay. It waits until the API server calls the webhook.
func RegisterSlowWebhook(t testing.TB, runtime *apiserver.ControlPlane, pki *PKI, delay time.Duration) {
	t.Helper()
	labels := map[string]string{"delay": delay.String()}
	port, called := startSlowWebhook(t, pki, delay)
	Register(t, runtime, "slow-"+delay.String(), port, pki.CA.PEM,
		admission.ConfigurationOptions{Timeout: 30 * time.Second}, watch.Watch{
			Name:     types.NamespacedName{Namespace: "slow", Name: strings.ReplaceAll(delay.String(), ".", "-")},
			Manager:  "slow",
			Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
			Selector: watch.Selector{Labels: labels},
		})
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, GenerateName: "probe-", Labels: labels,
	}}
	// A configuration takes effect after a while.
	Eventually(t, patience, "the slow webhook is called", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), min(delay, time.Second)/2)
		defer cancel()
		_ = runtime.Client.Create(ctx, probe.DeepCopy(), client.DryRunAll) // It need not end.
		return called.Load()
	})
}

func startSlowWebhook(t testing.TB, pki *PKI, delay time.Duration) (port int, called *atomic.Bool) {
	t.Helper()
	called = new(atomic.Bool)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		called.Store(true)
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		_ = json.NewEncoder(w).Encode(review) // The API server may have given up.
	}))
	server.TLS = keys.WebhookTLSConfig(pki.ServerMaterial(), nil)
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	address, _ := server.Listener.Addr().(*net.TCPAddr)
	return address.Port, called
}
