package check

import (
	"context"
	"io/fs"
	"net"
	"net/http"

	"github.com/runtime-watcher/runtime-watcher/agent"
)

// checkWebhooks compares the webhooks of the API server with the applied webhooks, because a canary
// proves only its own webhook.
func (c *checker) checkWebhooks(ctx context.Context) {
	name := c.opts.Webhook.Configuration
	if name == "" {
		c.skip("WEBHOOK_CONFIGURATION is not set, so a changed webhook is not noticed", "webhooks")
		return
	}
	if ctx.Err() != nil {
		c.skip("no time is left", "webhooks")
		return
	}

	ctx, cancel := context.WithTimeout(ctx, canaryTimeout)
	defer cancel()

	problem, err := agent.WebhookProblem(ctx, c.opts.To, c.opts.Options)

	isOwn := len(c.opts.Webhook.Own.Watches) > 0
	switch {
	case err != nil:
		c.failFor("webhooks", err, unread(name))
	case problem != "" && isOwn:
		c.fail("webhooks", problem, "the webhooks of WATCHERS",
			"a running agent puts them back within seconds, or within minutes if another agent has other settings: "+
				"check its log, and find the program that changes them")
	case problem != "":
		c.fail("webhooks", problem, "the webhooks as they were applied",
			"apply the webhook configuration again, and find the program that changes it")
	case isOwn:
		c.ok("webhooks", "those of %s are as intended, and the agent may apply them", name)
	default:
		c.ok("webhooks", "those of %s are as they were applied", name)
	}
}

func unread(name string) []advice {
	right := "the right to get the ValidatingWebhookConfiguration " + name
	answer := "an answer from the API server"
	const silent = "check CANARY_API_SERVER and the network policy"
	return []advice{
		{isA[*fs.PathError], "the token of the service account", "mount it, or set CANARY_TOKEN_FILE"},
		{isStatus(http.StatusUnauthorized), right, "check CANARY_TOKEN_FILE: the API server does not know the token"},
		{isStatus(http.StatusForbidden), right, "apply the ClusterRole and the ClusterRoleBinding of the webhooks"},
		{is(context.DeadlineExceeded), answer, silent},
		{isA[*net.OpError], answer, silent},
		{isAny, right, "check CANARY_API_SERVER and CANARY_CA_CERT"},
	}
}
