package loss

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
	"k8s.io/client-go/rest"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission/canary"
	"github.com/runtime-watcher/runtime-watcher/adapters/informer"
	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// runNATSAgent serves an agent with NATS as its transport until it is killed. Its settings are in the
// environment, with the names of cmd/agent.
func runNATSAgent(ctx context.Context) error {
	files := keys.Paths{CA: os.Getenv("CA_CERT"), Certificate: os.Getenv("TLS_CERT"), Key: os.Getenv("TLS_KEY")}
	forwarder, err := connect(files)
	if err != nil {
		return err
	}
	p := &parser{}
	parts := agent.Parts{Transport: forwarder}
	opts := agent.Options{
		Managers: []core.Manager{manager}, Instance: os.Getenv("INSTANCE"),
		MetricsAddress: "127.0.0.1:" + os.Getenv("METRICS_PORT"), Outbox: p.outbox(),
		Logger: slog.New(slog.NewJSONHandler(os.Stderr, nil)),
	}
	if os.Getenv("SOURCE") == sourceInformer {
		parts.Source = watchWidgets
	} else {
		opts.Keys = agent.Keys{Client: files}
		opts.Webhook = agent.Webhook{Address: "127.0.0.1:" + os.Getenv("WEBHOOK_PORT")}
		opts.Canary = p.canary()
	}
	if p.err != nil {
		return p.err
	}
	running, err := agent.New(ctx, parts, opts)
	if err != nil {
		return err
	}
	return running.Start(ctx)
}

// connect opens the connection, which is closed with the process.
func connect(paths keys.Paths) (*natsjetstream.Forwarder, error) {
	files, err := keys.NewFiles(paths, keys.FilesOptions{})
	if err != nil {
		return nil, err
	}
	runtime := core.RuntimeID(os.Getenv("RUNTIME"))
	material := func() (*tls.Certificate, *x509.CertPool) {
		material, err := files.Material()
		if err != nil {
			return nil, nil
		}
		return material.Certificate, material.Roots
	}
	conn, err := nats.Connect(os.Getenv("NATS"), natsjetstream.ConnectOptions(runtime, material)...)
	if err != nil {
		return nil, err
	}
	return natsjetstream.NewForwarder(conn, runtime, natsjetstream.ForwarderOptions{})
}

// watchWidgets is the source of an agent that watches.
func watchWidgets(ctx context.Context, inbox *agent.Inbox) error {
	source, err := informer.New(&rest.Config{
		Host: os.Getenv("INFORMER_API_SERVER"), BearerTokenFile: os.Getenv("INFORMER_TOKEN_FILE"),
		TLSClientConfig: rest.TLSClientConfig{CAFile: os.Getenv("INFORMER_CA_CERT")},
	}, inbox, []watch.Watch{{
		Name: types.NamespacedName{Namespace: "default", Name: "widgets"}, Manager: manager, Resource: lab.Widgets(),
		Selector: watch.Selector{Labels: map[string]string{label: os.Getenv("RUNTIME")}},
	}}, informer.Options{Hooks: informer.Hooks{Proved: inbox.Proved}})
	if err != nil {
		return err
	}
	return source.Start(ctx)
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

func (p *parser) canary() agent.Canary {
	namespace, name, _ := strings.Cut(os.Getenv("CANARY_LEASE"), "/")
	return agent.Canary{
		Lease: types.NamespacedName{Namespace: namespace, Name: name}, Interval: p.duration("CANARY_INTERVAL"),
		LeaseOptions: canary.LeaseOptions{
			Server: os.Getenv("CANARY_API_SERVER"), TokenFile: os.Getenv("CANARY_TOKEN_FILE"),
			CAFile: os.Getenv("CANARY_CA_CERT"), Getenv: os.Getenv,
		},
	}
}

func (p *parser) duration(name string) time.Duration {
	d, err := time.ParseDuration(os.Getenv(name))
	p.err = errors.Join(p.err, err)
	return d
}
