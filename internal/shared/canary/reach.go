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

// Reach asks the API server to connect to the webhook of an agent, by its proxy to Services. That
// is possible before there is a webhook configuration. Create one with [NewReach]. It is not safe
// for concurrent use.
type Reach struct {
	apiServer

	// urls have the path of the canary behind the proxy, one for each API server.
	urls []string
}

// NewReach returns a question about a Service. It fails as [NewLease] does.
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
// one without an answer. It needs the right to get services/proxy, for the name
// https:<service>:webhook. [ErrNoEndpoint] means that no pod is ready. Other errors are those of
// [Lease.Write]: status 503 means that the API server could not connect. It blocks until the API
// servers answer or ctx ends.
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

	// An agent takes POST only. With WEBHOOK_CLIENT_CA it ends the handshake, because the proxy
	// shows no certificate.
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
