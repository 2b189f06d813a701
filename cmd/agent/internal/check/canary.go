package check

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission/canary"
)

// canaryTimeout bounds the write of the canary.
const canaryTimeout = 10 * time.Second

// canary writes the Lease as a dry run. That needs the same rights as a write.
func (c *checker) canary(ctx context.Context) {
	opts := c.opts.Canary
	if opts.Lease == (types.NamespacedName{}) {
		c.skip("canary", "CANARY_LEASE is not set, so nothing proves that the API server calls the agent")
		return
	}
	if ctx.Err() != nil {
		c.skip("canary", "no time is left")
		return
	}
	lease, err := canary.NewLease(opts.Lease, opts.LeaseOptions)
	if err != nil {
		c.fail("canary", finding{
			err.Error(), "an API server, and its CA bundle", "check CANARY_API_SERVER and CANARY_CA_CERT",
		})
		return
	}
	defer lease.Close()
	ctx, cancel := context.WithTimeout(ctx, canaryTimeout)
	defer cancel()
	called, err := lease.Check(ctx)
	if err != nil {
		c.fail("canary", unwritten(opts.Lease.String(), err))
		return
	}
	c.ok("canary", "may patch the Lease %s", opts.Lease)
	c.webhook(called)
}

// webhook reports whether the API server called an agent for the dry run of the canary.
func (c *checker) webhook(called bool) {
	if called {
		c.ok("webhook", "the API server calls an agent")
		return
	}
	c.warn("webhook", finding{
		"the API server calls no agent", "a call, unless no agent runs yet",
		"apply the webhook configuration with --canary, and check its caBundle and the network policy",
	})
}

// unwritten returns the finding for a Lease that cannot be patched.
func unwritten(lease string, err error) finding {
	f := finding{found: err.Error(), want: "the right to patch the Lease " + lease}
	switch status := statusOf(err); {
	case isA[*fs.PathError](err): // NewLease has read the CA bundle.
		f.want, f.action = "the token of the service account", "mount it, or set CANARY_TOKEN_FILE"
	case status == http.StatusUnauthorized:
		f.action = "check CANARY_TOKEN_FILE: the API server does not know the token"
	case status == http.StatusForbidden:
		f.action = "apply the Role and the RoleBinding of the canary"
	case status == http.StatusNotFound:
		f.action = "create the Lease: the canary does not"
	case errors.Is(err, context.DeadlineExceeded), isA[*net.OpError](err):
		f.want, f.action = "an answer of the API server", "check CANARY_API_SERVER, and the network policy of the agent"
	default:
		f.action = "check CANARY_API_SERVER and CANARY_CA_CERT"
	}
	return f
}

// statusOf returns the HTTP status of an answer, 0 without an answer.
func statusOf(err error) int {
	type statusError interface {
		error
		StatusCode() int
	}
	if answer, ok := errors.AsType[statusError](err); ok {
		return answer.StatusCode()
	}
	return 0
}
