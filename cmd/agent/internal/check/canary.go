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
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/internal/shared/canary"
)

const (
	// canaryTimeout bounds the write of the canary, and the question for the agent here.
	canaryTimeout = 10 * time.Second
	// maxReady is in bytes. The answer of an agent has less than 2 KiB.
	maxReady = 16 << 10
)

// canary writes the Lease as a dry run. That needs the same rights as a write.
func (c *checker) canary(ctx context.Context) {
	opts := c.opts.Canary
	if opts.Lease == (types.NamespacedName{}) {
		c.skip("CANARY_LEASE is not set, so nothing proves that the API server calls the agent", "canary")
		return
	}
	if ctx.Err() != nil {
		c.skip("no time is left", "canary")
		return
	}
	lease, err := canary.NewLease(opts.Lease, canary.LeaseOptions{
		Server: opts.Server, TokenFile: opts.TokenFile, CAFile: opts.CAFile,
	})
	if err != nil {
		c.fail("canary", err.Error(), "an API server, and its CA bundle", "check CANARY_API_SERVER and CANARY_CA_CERT")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, canaryTimeout)
	defer cancel()
	before, _ := failuresBeside(ctx, c.opts.MetricsAddress)
	called, err := lease.Check(ctx)
	if err != nil {
		c.failFor("canary", err, unwritten(opts.Lease.String()))
		return
	}
	c.ok("canary", "may patch the Lease %s", opts.Lease)
	c.webhook(ctx, called, before)
}

// webhook reports whether the API server called an agent for the dry run of the canary. Without an
// agent beside this check, as in an init container, no call is expected yet. before is the number
// of failed calls of that agent before the dry run.
func (c *checker) webhook(ctx context.Context, called bool, before int64) {
	failures, runs := before, false
	if !called {
		failures, runs = failuresBeside(ctx, c.opts.MetricsAddress)
	}
	const action = "apply the webhook configuration with --canary, and check its caBundle and the network policy"
	switch {
	case called:
		c.ok("webhook", "the API server calls an agent")
	case !runs:
		c.warn("webhook", "the API server calls no agent", "a call, unless no agent runs yet", action)
	case failures > before:
		c.fail("webhook", "the API server rejects the certificate of the agent",
			"a caBundle with the CA of that certificate", "correct the caBundle of the webhook configuration")
	default:
		c.fail("webhook", "the API server calls no agent, and one runs here", "a call", action)
	}
}

// failuresBeside asks the agent at the metrics port of this host.
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
	right, answer := "the right to patch the Lease "+lease, "an answer of the API server"
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

func isStatus(code int) func(error) bool {
	type statusError interface {
		error
		StatusCode() int
	}
	return func(err error) bool {
		answer, ok := errors.AsType[statusError](err)
		return ok && answer.StatusCode() == code
	}
}
