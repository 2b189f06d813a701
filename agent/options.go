package agent

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/canary"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// Options are the optional settings of an [Agent]. The zero value is the documented default.
type Options struct {
	// Contract is the wire contract. It decides whether events are numbered, whether heartbeats are
	// sent, and the size of a batch. Default: v3.
	Contract contract.Version
	// Managers get a resync at start. The webhook answers with 404 for all other managers, unless
	// Managers is empty and ManagersFile is not set. At most 100 managers are allowed, including
	// the managers in the file. Default: none, so a manager gets a resync with its first event.
	Managers []core.Manager
	// OtherManagers makes the webhook accept reviews also for managers that are not listed, as it
	// does without any list. Default: false.
	OtherManagers bool
	// ManagersFile is the path of a file with further managers, one per line. It is read every 10
	// s. A new manager gets a resync. Default: none.
	ManagersFile string
	// Instance is the name of this replica. Default: none.
	Instance string
	// Version is the version of the program. Default: none.
	Version string
	// ConfigHash is a text that changes whenever the configuration changes. Default: none.
	ConfigHash string

	// ControlPlane contains the settings of the default transport, in addition to [Connection].
	ControlPlane ControlPlane
	// Webhook contains the optional settings of the default source.
	Webhook Webhook
	// Canary contains the settings of the canary, which proves that the API server calls the
	// webhook. Default: no canary.
	Canary Canary
	// OwnerAnnotation is the annotation that names the owner of an object, for the default source.
	// Default: [core.OwnerAnnotation].
	OwnerAnnotation string
	// Outbox contains the settings of the outbox that a caller may choose. The agent decides all
	// other options of the outbox, such as its managers.
	Outbox Outbox

	// MetricsAddress is the host:port of /metrics, /healthz and /readyz. Default: ":2112".
	MetricsAddress string
	// Collectors are further metrics to expose. Default: none.
	Collectors []prom.Collector
	// MetricAliases also exposes the metrics of kyma-project/runtime-watcher under their original
	// names. Default: false.
	MetricAliases bool
	// StopDelay is how long the agent still serves, but is not ready, before the shutdown begins.
	// Default: 0.
	StopDelay time.Duration
	// ShutdownTimeout bounds the shutdown after StopDelay. Default: 20 s.
	ShutdownTimeout time.Duration
	// Logger receives all log lines of the agent. Reviews wait while a line is written, so the
	// Logger must not block. Nil discards.
	Logger *slog.Logger
}

// Connection says how an agent reaches the control plane. Its fields have no defaults. A field may
// be empty only if [Parts] replaces each part that needs it.
type Connection struct {
	// Address is the address of the control plane: host, host:port or https://host:port. The
	// default transport needs it.
	Address string
	// Keys are the files with the CAs of the control plane and the client certificate for the
	// control plane. They are read again every 5 s. The default transport needs them, unless
	// [Parts].ClientKeys is set. The default source also serves this certificate, unless
	// [Webhook].Keys is set.
	Keys keys.Paths
}

// ControlPlane contains the optional settings of the default transport.
type ControlPlane struct {
	// Proxy is the HTTP proxy to connect through: http://host:port, optionally with user and
	// password. The tunnel (CONNECT) carries TLS, which the control plane terminates. Default:
	// none, and the environment is not read.
	Proxy string
	// ProxyCredentials is a file with user:password for the proxy, which is read for each
	// connection. Default: the credentials in Proxy, if any.
	ProxyCredentials string
	// ServerName is expected in the server certificate. Default: the host of [Connection].Address.
	ServerName string
	// Protocol is the version of HTTP, as in httpmtls.Options. Default: "http/1.1" with contract v3
	// and at most one manager, so that one connection is enough. Otherwise "h2", because several
	// requests are in flight.
	Protocol string
	// Fallback is the contract to use if the control plane does not support Contract. Default:
	// none.
	Fallback contract.Version
	// RetryNewest is the interval between attempts with Contract while Fallback is in use. Default:
	// 5 min.
	RetryNewest time.Duration
}

// Webhook contains the optional settings of the default source.
type Webhook struct {
	// Address is the host:port to listen on. Default: ":8443".
	Address string
	// Keys are the files with the certificate of the webhook. They are read again every 5 s.
	// Default: the Keys of [Connection].
	Keys keys.Paths
	// ClientCAs is the file with the bundle that client certificates must chain to. It is read
	// again every 5 s. Default: none, and the webhook requests no client certificate.
	ClientCAs string
	// ClientNames are the names that a client certificate may have. They need ClientCAs. Default:
	// any.
	ClientNames []string
	// Configuration is the name of the ValidatingWebhookConfiguration that makes the API server
	// call the agent. The agent reads it with the credentials of [Canary], at the interval of the
	// canary, and reports webhooks that differ from the webhooks that were applied. Default: none,
	// so the agent does not compare them.
	Configuration string
	// Own makes the agent maintain Configuration itself. Default: another program applies it.
	Own OwnConfiguration
	// MaxConnections bounds the open connections. Default: 192.
	MaxConnections int
	// MaxHandshakes bounds the concurrent TLS handshakes. Default: half of GOMAXPROCS, at least 1.
	MaxHandshakes int
}

// Canary contains the settings of the canary.
type Canary struct {
	// Lease is the Lease that the canary writes. Default: none, so there is no canary.
	Lease types.NamespacedName
	// Interval is the time between two writes. Default: 30 s.
	Interval time.Duration
	// Server is the https URL of the API server, or several URLs separated by commas. Each write
	// then goes to all of these servers, because a load balancer may hide that one API server does
	// not call the agent. Default: the cluster of the process, from KUBERNETES_SERVICE_HOST and
	// KUBERNETES_SERVICE_PORT.
	Server string
	// TokenFile and CAFile are the credentials. Both are read before each write, because they
	// rotate. Default: the files of the pod's service account.
	TokenFile, CAFile string
}

func (o Options) canaryInterval() time.Duration {
	return cmp.Or(o.Canary.Interval, defaults.CanaryInterval)
}

func (c Canary) isOff() bool { return c.Lease == types.NamespacedName{} }

// apiServer is how the canary and the webhook configuration reach the API server.
func (c Canary) apiServer() canary.LeaseOptions {
	return canary.LeaseOptions{Server: c.Server, TokenFile: c.TokenFile, CAFile: c.CAFile}
}

func (o Options) withDefaults() Options {
	return option.WithDefaults(o, Options{
		Contract:        contract.V3,
		MetricsAddress:  ":2112",
		Webhook:         Webhook{Address: ":8443", MaxConnections: defaults.MaxConnections},
		ShutdownTimeout: 20 * time.Second,
		Logger:          slog.New(slog.DiscardHandler),
	})
}

func (o Options) validate(to Connection, parts Parts) error {
	_, unknown := contract.ParseVersion(string(o.Contract))
	hasKeys := parts.ClientKeys != nil || to.Keys != (keys.Paths{})
	hasCanary := parts.Canary != nil || !o.Canary.isOff()
	hasConfiguration := parts.Configuration != nil || o.Webhook.Configuration != ""
	needsNoKeys := parts.Source != nil && parts.Transport != nil
	err := errors.Join(
		option.Unless(unknown == nil, "option Contract: %w", unknown),
		option.Unless(hasKeys || needsNoKeys,
			"Connection.Keys is empty: want Keys, or both a source and a transport"),
		option.Unless(to.Address != "" || parts.Transport != nil,
			"Connection.Address is empty: want an Address or a transport"),
		option.Unless(o.ControlPlane.Proxy == "" || parts.Dial == nil,
			"option ControlPlane.Proxy: want it only without Parts.Dial"),
		option.Unless(o.ControlPlane.Proxy != "" || o.ControlPlane.ProxyCredentials == "",
			"option ControlPlane.ProxyCredentials: want it only with ControlPlane.Proxy"),
		option.Unless(len(o.Webhook.ClientNames) == 0 || o.Webhook.ClientCAs != "",
			"option Webhook.ClientNames: want it only with Webhook.ClientCAs"),
		option.Unless(!hasCanary || parts.Source == nil,
			"option Canary: want it only with the default source, which it proves"),
		option.Unless(!hasConfiguration || parts.Source == nil,
			"option Webhook.Configuration: want it only with the default source, which it configures"),
		o.validateOwn(to, parts),
		validateManagers(o.Managers),
		option.NotNegative("StopDelay", o.StopDelay), option.NotNegative("ShutdownTimeout", o.ShutdownTimeout),
		option.NotNegative("ControlPlane.RetryNewest", o.ControlPlane.RetryNewest),
		option.NotNegative("Webhook.MaxConnections", o.Webhook.MaxConnections),
		option.NotNegative("Webhook.MaxHandshakes", o.Webhook.MaxHandshakes),
		option.NotNegative("Webhook.Own.ServicePort", int(o.Webhook.Own.ServicePort)),
		option.NotNegative("Canary.Interval", o.Canary.Interval),
	)
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	return nil
}

func (o Options) validateOwn(to Connection, parts Parts) error {
	own := o.Webhook.Own
	if !own.isOn() && parts.OwnConfiguration != nil {
		return errors.New("Parts.OwnConfiguration: want it only with option Webhook.Own")
	}
	if !own.isOn() {
		return nil
	}

	hasService := own.Service != types.NamespacedName{}
	return errors.Join(
		option.Unless(o.Webhook.Configuration != "", "option Webhook.Own: want it only with Webhook.Configuration"),
		option.Unless(parts.Configuration == nil, "option Webhook.Own: want no Parts.Configuration with it"),
		option.Unless(parts.Source == nil, "option Webhook.Own: want it only with the default source"),
		option.Unless(hasService != (own.URL != ""), "option Webhook.Own: want either a Service or a URL"),
		option.Unless(own.CA != "" || to.Keys.CA != "", "option Webhook.Own.CA: want it without Connection.Keys"),
	)
}

func validateManagers(managers []core.Manager) error {
	n := len(managers)
	most := defaults.MaxManagers
	problems := []error{option.Unless(n <= most, "option Managers: %d, want at most %d", n, most)}
	for i, manager := range managers {
		if _, err := core.ParseManager(string(manager)); err != nil {
			problems = append(problems, fmt.Errorf("option Managers: %w", err))
		}
		if slices.Contains(managers[:i], manager) {
			problems = append(problems, fmt.Errorf("option Managers: duplicate manager %q", manager))
		}
	}
	return errors.Join(problems...)
}
