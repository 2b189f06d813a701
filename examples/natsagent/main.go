// Natsagent is the agent with NATS JetStream as its transport. Everything else is that of the agent
// of this project: webhook, outbox, heartbeats, metrics and shutdown.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "natsagent:", err)
		os.Exit(1)
	}
}

type settings struct {
	servers, runtime, manager, webhook, metrics string
	material                                    keys.Paths
	resend                                      bool
}

func parse(args []string, stderr io.Writer) (s settings, err error) {
	flags := flag.NewFlagSet("natsagent", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.servers, "servers", "tls://127.0.0.1:4222", "`URLs` of NATS servers, with commas between")
	flags.StringVar(&s.runtime, "runtime", "runtime-1", "`name` of the runtime, as the NATS server knows it")
	flags.StringVar(&s.manager, "manager", "my-operator", "`name` of the operator that gets the events")
	flags.StringVar(&s.webhook, "webhook", ":8443", "`host:port` of the webhook")
	flags.StringVar(&s.metrics, "metrics", ":2112", "`host:port` of /metrics, /healthz and /readyz")
	flags.StringVar(&s.material.CA, "ca", "ca.crt", "`file` with the CA of the NATS server")
	flags.StringVar(&s.material.Certificate, "cert", "tls.crt", "`file` with the certificate of the runtime")
	flags.StringVar(&s.material.Key, "key", "tls.key", "`file` with its private key")
	flags.BoolVar(&s.resend, "resend", true, "resend events, for writes that other webhooks delay")
	return s, flags.Parse(args)
}

func run(ctx context.Context, args []string, stderr io.Writer) error {
	s, err := parse(args, stderr)
	if err != nil {
		return err
	}
	to, err := connect(s)
	if err != nil {
		return err
	}
	running, err := agent.New(ctx, agent.Parts{Transport: to}, options(s, stderr))
	if err != nil {
		return errors.Join(err, to.Close())
	}
	watching, stop := context.WithCancel(ctx)
	var files sync.WaitGroup
	files.Go(func() { _ = to.files.Start(watching) })
	defer files.Wait()
	defer stop()
	return running.Start(ctx)
}

func options(s settings, stderr io.Writer) agent.Options {
	return agent.Options{
		Managers:       []core.Manager{core.Manager(s.manager)},
		Keys:           agent.Keys{Client: s.material},
		Webhook:        agent.Webhook{Address: s.webhook},
		MetricsAddress: s.metrics,
		Outbox:         s.outbox(),
		// A sink that stalls holds up reviews here. cmd/agent has a writer for that.
		Logger: slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

func (s settings) outbox() outbox.Options {
	if s.resend {
		return outbox.Options{}
	}
	return outbox.Options{Resend: []time.Duration{}, ResendResync: -1}
}

// transport is the forwarder with its connection, which the agent closes after the last batch.
type transport struct {
	*natsjetstream.Forwarder

	conn  *nats.Conn
	files *keys.Files
}

// Close implements [io.Closer].
func (t *transport) Close() error { //nolint:unparam // The interface demands it.
	t.conn.Close()
	return nil
}

// connect connects with the certificate of the files, and again with each new one.
func connect(s settings) (*transport, error) {
	t := &transport{}
	var err error
	t.files, err = keys.NewFiles(s.material, keys.FilesOptions{Hooks: keys.FilesHooks{
		Reloaded: func(time.Time) { _ = t.conn.ForceReconnect() }, // It fails while it reconnects anyway.
	}})
	if err != nil {
		return nil, err
	}
	runtime := core.RuntimeID(s.runtime)
	if t.conn, err = nats.Connect(s.servers, natsjetstream.ConnectOptions(runtime, t.material)...); err != nil {
		return nil, err
	}
	if t.Forwarder, err = natsjetstream.NewForwarder(t.conn, runtime, natsjetstream.ForwarderOptions{}); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *transport) material() (*tls.Certificate, *x509.CertPool) {
	material, err := t.files.Material()
	if err != nil {
		return nil, nil
	}
	return material.Certificate, material.Roots
}
