package canary_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/internal/shared/canary"
)

// An answer of the agent means that the API server reaches it. The texts are those of kube-apiserver
// 1.36.
func TestTheAPIServerReachesAnAgent(t *testing.T) {
	for name, c := range map[string]struct {
		status  int
		message string
		want    string // in the error, empty for none
	}{
		"agent":            {http.StatusMethodNotAllowed, "", ""},
		"agent, some day":  {http.StatusOK, "", ""},
		"other caller":     {http.StatusServiceUnavailable, "error trying to reach service: remote error: tls: certificate required", ""},
		"no pod":           {http.StatusServiceUnavailable, `no endpoints available for service "https:watcher:webhook"`, "no agent is ready"},
		"firewall":         {http.StatusServiceUnavailable, "error trying to reach service: dial tcp 10.0.0.1:8443: i/o timeout", "i/o timeout"},
		"no right":         {http.StatusForbidden, `services "https:watcher:webhook" is forbidden`, "is forbidden"},
		"no Service":       {http.StatusNotFound, `services "watcher" not found`, "not found"},
		"other end of TLS": {http.StatusServiceUnavailable, "error trying to reach service: EOF", "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			opts := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet || r.URL.Path != "/api/v1/namespaces/ns/services/https:watcher:webhook/proxy/canary" {
					t.Errorf("request %s %s", r.Method, r.URL)
				}
				w.WriteHeader(c.status)
				if c.message != "" {
					_, _ = fmt.Fprintf(w, `{"kind":"Status","message":%q}`, c.message)
				}
			})
			reach := must(canary.NewReach(types.NamespacedName{Namespace: "ns", Name: "watcher"}, opts))(t)
			err := reach.Ask(t.Context())
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("Ask = %v, want an error with %q", err, c.want)
			}
			if errors.Is(err, canary.ErrNoEndpoint) != (name == "no pod") {
				t.Errorf("Ask = %v", err)
			}
		})
	}
}
