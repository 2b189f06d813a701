package agent

import (
	"context"
	"net"
	"net/http"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// Parts are the replaceable parts of an [Agent].
type Parts struct {
	// Source observes the changes. It offers events to inbox until ctx ends and returns after it
	// has stopped. It must not return earlier, except with an error. Default: the webhook.
	Source func(ctx context.Context, inbox *Inbox) error
	// Problem returns why Source does not observe the changes for a manager, or "" if it observes
	// them. Heartbeats report the text as [core.Heartbeat].ConfigError. Problem is called
	// concurrently and must return immediately. Default: none.
	Problem func(core.Manager) string
	// Ready returns nil if Source observes all changes, and otherwise an error that says why it
	// does not observe them yet. The agent is ready when Source is ready. Ready is called
	// concurrently. Default: always ready.
	Ready func() error
	// Transport carries the batches to the control plane. If it is an [io.Closer], it is closed
	// after the last batch. It may have a method RecheckAfter like the method of
	// httpmtls.Forwarder. Default: HTTPS.
	Transport core.Forwarder
	// Tracing wraps the webhook, the inbox of the webhook, and the transport. Package
	// adapters/opentelemetry provides an implementation. Default: none.
	Tracing interface {
		Webhook(next http.Handler) http.Handler
		Acceptor(next core.Acceptor) core.Acceptor
		Forwarder(next core.Forwarder) core.Forwarder
	}

	// Listen binds the ports of the webhook and of the metrics. Default: TCP.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Dial opens the connections of the default transport. Default: TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// ClientKeys and ServingKeys replace the files of [Connection].Keys and [Webhook].Keys. Each
	// source is read every 5 s. If a source fails, its last valid material stays in use. Default:
	// these files.
	ClientKeys, ServingKeys keys.Source
	// Canary writes a nonce to an object that the webhook watches, and returns the answer of the
	// API server. An error means that nothing was written. It is called by one goroutine and may
	// block until ctx ends. Default: a function that writes [Canary].Lease.
	Canary func(ctx context.Context, nonce string) (CanaryAnswer, error)
	// Configuration returns the webhook configuration of the API server, or nil if it does not
	// exist. An error means that the configuration could not be read. It is called by one goroutine
	// and may block until ctx ends. Default: a function that reads [Webhook].Configuration.
	Configuration func(ctx context.Context) (*admissionregistrationv1.ValidatingWebhookConfiguration, error)
	// OwnConfiguration stores the webhook configuration of an agent that maintains its
	// configuration. Default: the object [Webhook].Configuration of the cluster.
	OwnConfiguration ConfigurationStore
	// Now is the clock. If two consecutive calls return times that are far apart, changes may have
	// been missed, and the agent requests a resync. Default: [time.Now].
	Now func() time.Time
}

// CanaryAnswer is the answer of an API server to a write of the canary.
type CanaryAnswer struct {
	// Warnings are the texts of the Warning headers.
	Warnings []string
	// Version is the resourceVersion of the written object. If it is lower than before, the API
	// server was restored from a backup, and the agent requests a resync. Empty: unknown.
	Version string
}

func (p Parts) withDefaults() Parts {
	return option.WithDefaults(p, Parts{
		Tracing: noTracing{},
		Problem: func(core.Manager) string { return "" },
		Ready:   func() error { return nil },
		Listen:  new(net.ListenConfig).Listen,
		Now:     time.Now,
	})
}

type noTracing struct{}

func (noTracing) Webhook(next http.Handler) http.Handler { return next }

func (noTracing) Acceptor(next core.Acceptor) core.Acceptor { return next }

func (noTracing) Forwarder(next core.Forwarder) core.Forwarder { return next }
