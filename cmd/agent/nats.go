package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/cmd/agent/internal/check"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/proxy"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/connect"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// natsTransport is a forwarder with its connection, which the agent closes after the last batch.
type natsTransport struct {
	*natsjetstream.Forwarder

	conn  *nats.Conn
	files *keys.Files
	// through is the dialer of the proxy. It is nil without a proxy.
	through *proxy.Dialer
}

// Forward names the proxy if the proxy is the reason why there is no connection. The client of NATS
// hides the errors of its dials.
func (t *natsTransport) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	err := t.Forwarder.Forward(ctx, manager, batch)
	if err == nil || t.through == nil || t.conn.IsConnected() {
		return err
	}

	if failure := t.through.Failure(); failure != nil {
		return failure
	}
	return err
}

// addTransport returns stop, to be called after the agent, also if no agent was built.
func (c *config) addTransport(parts *agent.Parts) (stop func(), err error) {
	if c.transport != transportNATS {
		return func() {}, nil
	}

	to, err := c.connectNATS(natsjetstream.ForwarderOptions{Timeout: c.Outbox.ForwardTimeout})
	if err != nil {
		return nil, err
	}

	parts.Transport = to
	ctx, cancel := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() { _ = to.files.Start(ctx) }) // It returns nil.

	return func() {
		cancel()
		following.Wait()
		to.conn.Close()
	}, nil
}

func (c *config) tryNATS() check.Link {
	if c.transport != transportNATS {
		return nil
	}
	return func() (core.Forwarder, func(), error) {
		// Without an answer from the operator, a stored heartbeat is not a success.
		timeout := c.Outbox.ForwardTimeout
		t, err := c.connectNATS(natsjetstream.ForwarderOptions{Timeout: timeout, AnswerWait: 2 * timeout},
			nats.RetryOnFailedConnect(false))
		if err != nil {
			return nil, nil, err
		}

		return t, t.conn.Close, nil
	}
}

// connectNATS returns without waiting for the server. It reconnects with each new certificate.
func (c *config) connectNATS(options natsjetstream.ForwarderOptions, opts ...nats.Option) (*natsTransport, error) {
	t := &natsTransport{}

	var err error
	t.files, err = keys.NewFiles(c.to.Keys, keys.FilesOptions{Hooks: keys.FilesHooks{
		Reloaded: func(keys.Generation) { _ = t.conn.ForceReconnect() }, // It fails only while it reconnects.
	}})
	if err != nil {
		return nil, err
	}

	address, err := connect.ParseAddress(c.to.Address)
	if err != nil {
		return nil, err
	}

	serverName := c.ControlPlane.ServerName // Empty: the host.
	if serverName != "" {
		serverName, err = connect.ParseHost(serverName)
		if err != nil {
			return nil, fmt.Errorf("KCP_SERVER_NAME: %w", err)
		}
	}

	certificate, _ := t.currentMaterial()
	runtime := core.RuntimeID(certificate.Leaf.Subject.CommonName)
	server := (&url.URL{Scheme: "tls", Host: address.Host}).String() // Without a port, the client uses 4222.
	expectServer := func(o *nats.Options) error {
		o.TLSConfig.ServerName = serverName
		return nil
	}

	base := append(natsjetstream.ConnectOptions(runtime, t.currentMaterial), expectServer)
	if c.natsFirst {
		base = append(base, nats.TLSHandshakeFirst())
	}

	if c.ControlPlane.Proxy != "" {
		t.through, err = proxy.New(proxy.Options{
			Address: c.ControlPlane.Proxy, Credentials: c.ControlPlane.ProxyCredentials,
			Timeout: c.Outbox.ForwardTimeout / 2,
		})
		if err != nil {
			return nil, err
		}

		// The proxy resolves the name, because the runtime may be unable to resolve it.
		base = append(base, nats.SetCustomDialer(natsDialer{t.through}), nats.SkipHostLookup())
	}

	opts = append(base, opts...)
	t.conn, err = nats.Connect(server, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", server, err)
	}

	t.Forwarder, err = natsjetstream.NewForwarder(t.conn, runtime, options)
	if err != nil {
		t.conn.Close()
		return nil, err
	}
	return t, nil
}

// natsDialer is a dialer in the form that the NATS client uses.
type natsDialer struct{ through *proxy.Dialer }

// Dial blocks for at most 5 s.
func (d natsDialer) Dial(network, address string) (net.Conn, error) {
	return d.through.DialContext(context.Background(), network, address)
}

func (t *natsTransport) currentMaterial() (*tls.Certificate, *x509.CertPool) {
	material := t.files.Status().Material
	return material.Certificate, material.Roots
}
