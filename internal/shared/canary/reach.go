package canary

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// PortName is the name of the port of the webhook in the Service of an agent.
const PortName = "webhook"

// ErrNoEndpoint means that no pod behind a Service is ready.
var ErrNoEndpoint = errors.New("no agent is ready behind the Service")

// Reach asks the API server to connect to the webhook of an agent through the proxy for Services.
// This is possible before there is a webhook configuration. Create one with [NewReach]. It is not
// safe for concurrent use.
type Reach struct {
	apiServer

	// urls contains one URL for each API server, with the path of the canary behind the proxy.
	urls []string
}

// NewReach returns a Reach for a Service. It fails for the same reasons as [NewLease].
func NewReach(service types.NamespacedName, opts LeaseOptions) (*Reach, error) {
	server, addresses, err := newServer(opts)
	if err != nil {
		return nil, err
	}
	r := &Reach{apiServer: server}
	for _, address := range addresses {
		path := address.JoinPath("api/v1/namespaces", url.PathEscape(service.Namespace),
			"services", "https:"+url.PathEscape(service.Name)+":"+PortName, "proxy", Path)
		r.urls = append(r.urls, path.String())
	}
	return r, nil
}

// Ask returns nil if an agent has answered each API server, and otherwise the error of the first
// server without an answer. It needs permission to get services/proxy for the name
// https:<service>:webhook. [ErrNoEndpoint] means that no pod is ready. Other errors are the same as
// from [Lease.Write]: status 503 means that the API server could not connect. It blocks until the
// API servers answer or ctx ends.
func (r *Reach) Ask(ctx context.Context) error {
	for _, target := range r.urls {
		if err := r.askServer(ctx, target); err != nil {
			return fmt.Errorf("API server %s: %w", hostOf(target), err)
		}
	}
	return nil
}

func (r *Reach) askServer(ctx context.Context, target string) error {
	_, _, err := r.doCall(ctx, call{method: http.MethodGet, target: target}, maxAnswer)
	refused, isRefusal := errors.AsType[*refusal](err)
	if !isRefusal {
		return err
	}

	// An agent accepts only POST. With WEBHOOK_CLIENT_CA the agent ends the handshake, because the
	// proxy presents no certificate.
	isOfAgent := refused.StatusCode() == http.StatusMethodNotAllowed ||
		strings.Contains(refused.message, "remote error: tls: ")
	switch {
	case isOfAgent:
		return nil
	case strings.Contains(refused.message, "no endpoints available"):
		return ErrNoEndpoint
	default:
		return err
	}
}
