package check

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/internal/shared/canary"
)

// suffixOfLease is the end of the name of the Lease in the manifests, the chart and the installer.
// The rest of that name is the name of the Service.
const suffixOfLease = "-canary"

// agentService returns the Service of the webhook, if it is known.
func (c *checker) agentService() (service types.NamespacedName, isKnown bool) {
	if own := c.opts.Webhook.Own; len(own.Watches) > 0 {
		return own.Service, own.URL == ""
	}

	lease := c.opts.Canary.Lease
	name, isKnown := strings.CutSuffix(lease.Name, suffixOfLease)
	return types.NamespacedName{Namespace: lease.Namespace, Name: name}, isKnown && name != ""
}

// checkReach asks the API server to connect to the webhook. The request needs no webhook
// configuration, so the check can run before the configuration is installed.
func (c *checker) checkReach(ctx context.Context) {
	const name = "reach"

	service, isKnown := c.agentService()
	if !isKnown {
		c.skip("the Service of the webhook is not known", name)
		return
	}

	question, err := canary.NewReach(service, c.apiServer())
	if err != nil {
		c.fail(name, err.Error(), "an API server, and its CA bundle", "check CANARY_API_SERVER and CANARY_CA_CERT")
		return
	}

	ctx, cancel := context.WithTimeout(ctx, canaryTimeout)
	defer cancel()

	err = question.Ask(ctx)
	switch {
	case err == nil:
		c.ok(name, "the API server connects to the webhook of the Service %s", service)
	case errors.Is(err, canary.ErrNoEndpoint):
		c.warn(name, err.Error(), "a ready agent", "check again when an agent is ready")
	case isStatus(http.StatusForbidden)(err):
		c.skip("the account has no right to get services/proxy: apply the Role of the canary", name)
	case isStatus(http.StatusNotFound)(err):
		c.skip("there is no Service "+service.String(), name)
	default:
		found := "the API server does not reach the Service " + service.String() + ": " + err.Error()
		c.fail(name, found, "a connection within 2s, because each matching write waits that long",
			"allow the API server to connect to the pods, or use port 10250, the host network, or the informer")
	}
}
