package check

import (
	"context"
	"net"
	"time"

	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/canary"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

const timeout = 40 * time.Second

// Setup is the set-up of an agent.
type Setup struct {
	agent.Options

	To agent.Connection
}

// checker runs the steps of agent check, one after the other. Later steps use the fields that
// earlier steps have set.
type checker struct {
	*report

	opts   Setup
	pair   *keys.Material // of the client, nil if it is broken
	client keys.Source    // nil unless the files are sound
	known  []core.Manager // to which heartbeats are sent
	// dial connects through the proxy. It is nil without a proxy.
	dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Link connects to the NATS server, and returns a forwarder and a function that stops it. The
// forwarder fails unless the operator answers.
type Link func() (over core.Forwarder, stop func(), err error)

// canaryTimeout bounds the write of the canary, and the request to the agent on this host.
const canaryTimeout = 10 * time.Second

// apiServer returns the options with which each check reaches the API server, as the agent does.
func (c *checker) apiServer() canary.LeaseOptions {
	opts := c.opts.Canary
	return canary.LeaseOptions{Server: opts.Server, TokenFile: opts.TokenFile, CAFile: opts.CAFile}
}
