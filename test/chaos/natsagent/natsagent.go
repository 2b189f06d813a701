// Package natsagent is an agent with the webhook as its source and NATS JetStream as its transport,
// for the chaos suite. It has the settings of the suite, unlike examples/natsagent.
package natsagent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission/canary"
	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// Run serves until it is killed. Its settings are in the environment, with the names of the agent.
func Run(ctx context.Context) error {
	material := keys.Paths{
		CA: os.Getenv("CA_CERT"), Certificate: os.Getenv("TLS_CERT"), Key: os.Getenv("TLS_KEY"),
	}

	files, err := keys.NewFiles(material, keys.FilesOptions{})
	if err != nil {
		return err
	}

	forwarder, err := connect(files)
	if err != nil {
		return err
	}

	opts, err := options(material)
	if err != nil {
		return err
	}

	agent, err := agent.New(ctx, agent.Parts{Transport: forwarder}, opts)
	if err != nil {
		return err
	}
	return agent.Start(ctx)
}

// connect opens the connection, which is closed with the process.
func connect(files *keys.Files) (*natsjetstream.Forwarder, error) {
	runtime := core.RuntimeID(os.Getenv("RUNTIME"))

	conn, err := nats.Connect(os.Getenv("NATS"), natsjetstream.ConnectOptions(runtime,
		func() (*tls.Certificate, *x509.CertPool) {
			material, err := files.Material()
			if err != nil {
				return nil, nil
			}
			return material.Certificate, material.Roots
		})...)
	if err != nil {
		return nil, err
	}
	return natsjetstream.NewForwarder(conn, runtime, natsjetstream.ForwarderOptions{})
}

func options(material keys.Paths) (agent.Options, error) {
	p := &parser{}
	namespace, name, _ := strings.Cut(os.Getenv("CANARY_LEASE"), "/")
	opts := agent.Options{
		Managers:       []core.Manager{core.Manager(os.Getenv("MANAGERS"))},
		Instance:       os.Getenv("INSTANCE"),
		Keys:           agent.Keys{Client: material},
		Webhook:        agent.Webhook{Address: "127.0.0.1:" + os.Getenv("WEBHOOK_PORT")},
		MetricsAddress: "127.0.0.1:" + os.Getenv("METRICS_PORT"),
		Canary: agent.Canary{
			Lease: types.NamespacedName{Namespace: namespace, Name: name}, Interval: p.duration("CANARY_INTERVAL"),
			LeaseOptions: canary.LeaseOptions{
				Server: os.Getenv("CANARY_API_SERVER"), TokenFile: os.Getenv("CANARY_TOKEN_FILE"),
				CAFile: os.Getenv("CANARY_CA_CERT"), Getenv: os.Getenv,
			},
		},
		Outbox: p.outbox(),
		Logger: slog.New(slog.NewJSONHandler(os.Stderr, nil)),
	}
	return opts, p.err
}

// parser keeps the errors of settings.
type parser struct{ err error }

func (p *parser) outbox() outbox.Options {
	opts := outbox.Options{
		Settle: p.duration("SETTLE"), Resend: []time.Duration{}, ResendResync: p.duration("RESEND_RESYNC"),
		HeartbeatInterval: p.duration("HEARTBEAT_INTERVAL"),
	}
	if after := p.duration("RESEND_AFTER"); after > 0 {
		opts.Resend = append(opts.Resend, after)
	}

	if text := os.Getenv("OUTBOX_MAX_KEYS"); text != "" {
		n, err := strconv.Atoi(text)
		opts.MaxKeys, p.err = n, errors.Join(p.err, err)
	}
	return opts
}

func (p *parser) duration(name string) time.Duration {
	d, err := time.ParseDuration(os.Getenv(name))
	p.err = errors.Join(p.err, err)
	return d
}
