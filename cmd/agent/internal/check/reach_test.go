package check

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// Before there is a webhook configuration, the API server can tell whether it reaches the webhook.
func TestReach(t *testing.T) {
	own := agent.OwnConfiguration{Watches: []watch.Watch{{}}}
	own.Service.Namespace = "watcher"
	own.Service.Name = "other"
	byURL := agent.OwnConfiguration{Watches: own.Watches, URL: "https://agent.example"}

	for name, c := range map[string]struct {
		lease   string
		own     agent.OwnConfiguration
		status  int
		message string
		want    string
	}{
		"connects":      {"agent-canary", agent.OwnConfiguration{}, http.StatusMethodNotAllowed, "", "ok    reach                 the API server connects to the webhook of the Service watcher/agent"},
		"own Service":   {"agent-canary", own, http.StatusMethodNotAllowed, "", "ok    reach                 the API server connects to the webhook of the Service watcher/other"},
		"no pod":        {"agent-canary", agent.OwnConfiguration{}, http.StatusServiceUnavailable, "no endpoints available for service", "warn  reach "},
		"firewall":      {"agent-canary", agent.OwnConfiguration{}, http.StatusServiceUnavailable, "dial tcp: i/o timeout", "i/o timeout\"; want a connection within 2s, because each matching write waits that long; allow the API server"},
		"no right":      {"agent-canary", agent.OwnConfiguration{}, http.StatusForbidden, "forbidden", "skip  reach                 the account has no right"},
		"no Service":    {"agent-canary", agent.OwnConfiguration{}, http.StatusNotFound, "not found", "skip  reach                 there is no Service watcher/agent"},
		"another Lease": {"lease", agent.OwnConfiguration{}, http.StatusMethodNotAllowed, "", "skip  reach                 the Service of the webhook is not known"},
		"a URL":         {"agent-canary", byURL, http.StatusMethodNotAllowed, "", "skip  reach                 the Service of the webhook is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			checker, out := newCanaryChecker(t, c.status, fmt.Sprintf(`{"kind":"Status","message":%q}`, c.message))
			checker.opts.MetricsAddress = "127.0.0.1:1" // No agent.
			checker.opts.Webhook.Own = c.own
			checker.opts.Canary.Lease = types.NamespacedName{Namespace: "watcher", Name: c.lease}

			checker.checkCanary(t.Context())
			if !strings.Contains(out.String(), c.want) {
				t.Errorf("the check prints\n%s\nwant %q", out, c.want)
			}
		})
	}
}
