package check

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/internal/shared/canary"
)

// maxReady bounds an answer, in bytes. The answer of an agent has less than 2 KiB.
const maxReady = 16 << 10

// checkCanary writes the Lease as a dry run. A dry run needs the same permissions as a write.
func (c *checker) checkCanary(ctx context.Context) {
	opts := c.opts.Canary
	if opts.Lease == (types.NamespacedName{}) {
		c.skip("CANARY_LEASE is not set, so nothing proves that the API server calls the agent", "canary")
		return
	}
	if ctx.Err() != nil {
		c.skip("no time is left", "canary")
		return
	}

	lease, err := canary.NewLease(opts.Lease, c.apiServer())
	if err != nil {
		c.fail("canary", err.Error(), "an API server, and its CA bundle", "check CANARY_API_SERVER and CANARY_CA_CERT")
		return
	}

	asking, cancel := context.WithTimeout(ctx, canaryTimeout)
	defer cancel()

	before, _ := failuresBeside(asking, c.opts.MetricsAddress)
	called, err := lease.Check(asking)
	if err != nil {
		c.failFor("canary", err, unwritten(opts.Lease.String()))
		return
	}

	c.ok("canary", "may patch the Lease %s", opts.Lease)
	if !c.checkCall(asking, called, before) {
		c.checkReach(ctx)
	}
}

// checkCall reports whether the API server called an agent for the dry run of the canary. If no
// agent runs next to this check, as in an init container, no call is expected yet. before is the
// number of failed calls of the agent before the dry run. It returns true if the API server has
// connected to an agent.
func (c *checker) checkCall(ctx context.Context, called bool, before int64) (connects bool) {
	if called {
		c.ok("webhook", "the API server calls an agent")
		return true
	}

	failures, runs := failuresBeside(ctx, c.opts.MetricsAddress)
	if runs && failures > before {
		c.fail("webhook", "the API server rejects the certificate of the agent",
			"a caBundle with the CA of that certificate", "correct the caBundle of the webhook configuration")
		return true
	}

	reason, action := c.adviseUncalled(ctx)
	if !runs {
		c.warn("webhook", "the API server calls no agent"+reason, "a call, unless no agent runs yet", action)
		return false
	}

	c.fail("webhook", "the API server calls no agent, and one runs here"+reason, "a call", action)
	return false
}

// adviseUncalled distinguishes an agent that the API server cannot reach from a configuration that
// names no agent. It returns an empty reason if the agent may not read the configuration.
func (c *checker) adviseUncalled(ctx context.Context) (reason, action string) {
	const apply = "apply the webhook configuration with --canary"

	name := c.opts.Webhook.Configuration
	stored, err := c.storedConfiguration(ctx, name)
	switch {
	case err != nil:
		return "", apply + ", and check its caBundle and the network policy"
	case stored == nil:
		return ": the webhook configuration " + name + " is missing", apply
	case len(stored.Webhooks) == 0:
		return ": the webhook configuration " + name + " has no webhooks", apply
	case !slices.ContainsFunc(stored.Webhooks, isCanary):
		return ": the webhook configuration " + name + " has no webhook for the canary", apply
	default:
		return ", although the webhook configuration " + name + " has the webhook of the canary",
			"act on the line webhooks if it fails, and otherwise let the API server connect to the pods: " +
				"check the firewall and the network policy"
	}
}

var errNoConfiguration = errors.New("WEBHOOK_CONFIGURATION is not set")

// storedConfiguration returns nil without an error if the API server has no configuration of that
// name.
func (c *checker) storedConfiguration(
	ctx context.Context, name string,
) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	if name == "" {
		return nil, errNoConfiguration
	}

	api, err := canary.NewConfiguration(name, c.apiServer())
	if err != nil {
		return nil, err
	}

	return canary.DecodeConfiguration[admissionregistrationv1.ValidatingWebhookConfiguration](api.Read(ctx))
}

func isCanary(webhook admissionregistrationv1.ValidatingWebhook) bool {
	to := webhook.ClientConfig
	switch {
	case to.URL != nil:
		return strings.HasSuffix(*to.URL, canary.Path)
	case to.Service != nil && to.Service.Path != nil:
		return strings.HasSuffix(*to.Service.Path, canary.Path)
	default:
		return false
	}
}

// failuresBeside asks the agent on this host for its failures, at the metrics port.
func failuresBeside(ctx context.Context, address string) (failures int64, runs bool) {
	host, port, _ := net.SplitHostPort(address)
	target := "http://" + net.JoinHostPort(cmp.Or(host, "localhost"), port) + "/readyz"

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
	if err != nil {
		return 0, false
	}

	answer, err := (&http.Client{Timeout: canaryTimeout}).Do(request)
	if err != nil {
		return 0, false
	}
	defer answer.Body.Close() // Its error does not change the answer.

	var ready struct {
		WebhookFailures *int64 `json:"webhookFailures"`
	}
	err = json.NewDecoder(io.LimitReader(answer.Body, maxReady)).Decode(&ready)
	if err != nil || ready.WebhookFailures == nil {
		return 0, false
	}

	return *ready.WebhookFailures, true
}

func unwritten(lease string) []advice {
	right := "the right to patch the Lease " + lease
	answer := "an answer from the API server"
	const silent = "check CANARY_API_SERVER, the network policy, and that no agent hangs"
	return []advice{
		// NewLease has read the CA bundle.
		{isA[*fs.PathError], "the token of the service account", "mount it, or set CANARY_TOKEN_FILE"},
		{isStatus(http.StatusUnauthorized), right, "check CANARY_TOKEN_FILE: the API server does not know the token"},
		{isStatus(http.StatusForbidden), right, "apply the Role and the RoleBinding of the canary"},
		{isStatus(http.StatusNotFound), right, "create the Lease: the canary does not"},
		{is(context.DeadlineExceeded), answer, silent},
		{isA[*net.OpError], answer, silent},
		{isAny, right, "check CANARY_API_SERVER and CANARY_CA_CERT"},
	}
}
