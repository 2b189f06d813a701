package main

import (
	"slices"
	"strconv"

	"github.com/runtime-watcher/runtime-watcher/cmd/agent/internal/watching"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
)

type group struct {
	title    string
	settings []setting
}

// groups are all settings of the agent. They store their values in c.
func groups(c *config) []group {
	transports := []string{transportHTTPS, transportNATS}
	sources := []string{sourceAdmission, sourceInformer}
	return []group{
		{"Required", []setting{
			required("CA_CERT", file(&c.Keys.Client.CA),
				"CAs that sign the control plane's certificate."),
			required("TLS_CERT", file(&c.Keys.Client.Certificate),
				"Client certificate of this runtime. The webhook serves it, too, unless `WEBHOOK_TLS_CERT` is set."),
			required("TLS_KEY", file(&c.Keys.Client.Key),
				"Private key of `TLS_CERT`."),
			required("KCP_ADDR", into("host:port", &c.ControlPlane.Address, parseAddress),
				"Address of the control plane: host, host:port or https://host:port. Without a port 443, with `nats` 4222."),
		}},
		{"Control plane", []setting{
			optional("TRANSPORT", choice(&c.transport, transports, transports...), transportHTTPS,
				"How events travel: by HTTPS to a listener or gateway, or through the NATS server at `KCP_ADDR`. "+
					"With `nats`, the Common Name of `TLS_CERT` names the runtime, and `KCP_PROTOCOL` has no effect."),
			optional("KCP_CONTRACT", into(versions(), &c.Contract, contract.ParseVersion), string(defaultContract),
				"Wire contract to send events with."),
			optional("CONTRACT_FALLBACK", choice(&c.ControlPlane.Fallback, []string{"v2"}, contract.V2), "",
				"Contract to use while the control plane does not know `KCP_CONTRACT`. If empty, events wait until it does."),
			optional("CONTRACT_RETRY", duration(&c.ControlPlane.RetryNewest), defaults.RetryNewest.String(),
				"While the fallback is in use, time between two attempts with `KCP_CONTRACT`."),
			optional("KCP_SERVER_NAME", text("name", &c.ControlPlane.ServerName), "",
				"Server name to expect in the control plane's certificate. If empty, the host of `KCP_ADDR`."),
			optional("KCP_PROTOCOL", choice(&c.ControlPlane.Protocol, []string{"http1", "http2"}, "http/1.1", "h2"), "",
				"HTTP version to connect to the control plane with. If empty, http1 with v3 and at most one manager, else http2."),
			optional("MANAGERS", c.managers(), "",
				"Managers to report to, separated by commas. "+
					"Each gets a resync at start, and the webhook answers 404 for all others, unless the list has `*`. "+
					"Without both lists, the agent learns managers from their first review."),
			optional("MANAGERS_FILE", file(&c.ManagersFile), "",
				"File with more managers, one per line, which the agent reads every 10 s. A new manager gets a resync."),
			optional("FORWARD_TIMEOUT", duration(&c.Outbox.ForwardTimeout), outbox.Defaults().ForwardTimeout.String(),
				"Timeout of one attempt to send events."),
			optional("MAX_BACKOFF", duration(&c.Outbox.MaxBackoff), outbox.Defaults().MaxBackoff.String(),
				"Longest delay between two attempts, unless the control plane requests a longer one."),
			optional("HEARTBEAT_INTERVAL", durationOrOff(&c.Outbox.HeartbeatInterval),
				outbox.Defaults().HeartbeatInterval.String(),
				"Longest time between two heartbeats, with contract v3. 0s turns them off. "+
					"With 5m, a dead agent is noticed within 60s directly over mTLS, else after 10m."),
		}},
		{"Events", []setting{
			optional("SETTLE", durationOrOff(&c.Outbox.Settle), outbox.Defaults().Settle.String(),
				"Delay before an event is sent, because the API server calls the webhook before the commit. 0s is none."),
			optional("RESEND_AFTER", into("durations", &c.Outbox.Resend, parseDelays), "3s,35s",
				"Rising delays after which a delivered event is sent once more, for a write that is committed late. 0s is never."),
			optional("RESEND_RESYNC", durationOrOff(&c.Outbox.ResendResync), outbox.Defaults().ResendResync.String(),
				"Delay after which a resync is sent once more, for late commits: "+
					"more than the timeout of each webhook in this cluster (at most 30s). 0s is never."),
			optional("OUTBOX_MAX_KEYS", into("number", &c.Outbox.MaxKeys, parseCount), strconv.Itoa(outbox.Defaults().MaxKeys),
				"Distinct events to keep while the control plane does not accept them. A resync replaces those beyond."),
		}},
		{"Source", []setting{
			optional("SOURCE", choice(&c.source, sources, sources...), sourceAdmission,
				"How the agent sees changes: as a webhook before the commit, or by a watch of the API server after it. "+
					"With `informer`, `SETTLE`, `RESEND_AFTER`, `RESEND_RESYNC` and the settings of the webhook have no effect."),
			optional("WATCHERS", into("Watchers in YAML", &c.informer.Watches, watching.Watches), "",
				"`Watcher` resources to watch. Required with `SOURCE=informer`. "+
					"`spec.matchConditions` are refused. A subresource cannot be watched, which degrades its manager."),
			optional("EXCLUDED_NAMESPACES", into("names", &c.informer.ExcludedNamespaces, parseNames), "",
				"Namespaces that the informer does not watch. If empty, it watches all."),
			optional("INFORMER_API_SERVER", text("URL", &c.informer.Server), "",
				"API server that the informer watches. If empty, the one of the pod's cluster."),
			optional("INFORMER_TOKEN_FILE", file(&c.informer.TokenFile), "",
				"Bearer token of the informer. If empty, the token of the pod's service account."),
			optional("INFORMER_CA_CERT", file(&c.informer.CAFile), "",
				"CAs of `INFORMER_API_SERVER`. If empty, the file of the pod's service account."),
		}},
		{"Webhook", []setting{
			lenient(optional("WEBHOOK_PORT", into("port", &c.webhook.port, parsePort), "8443",
				"Port of the webhook (TLS 1.3). 0 takes a free port.")),
			optional("WEBHOOK_BIND", into("IP", &c.webhook.host, parseIP), "",
				"Address that the webhook listens on. If empty, all addresses."),
			optional("WEBHOOK_TLS_CERT", file(&c.Keys.Serving.Certificate), "",
				"Server certificate of the webhook. If empty, `TLS_CERT`."),
			optional("WEBHOOK_TLS_KEY", file(&c.Keys.Serving.Key), "",
				"Private key of `WEBHOOK_TLS_CERT`."),
			optional("WEBHOOK_CLIENT_CA", file(&c.Keys.WebhookCAs), "",
				"CAs that sign the API server's client certificate. If empty, the webhook requests none."),
			optional("WEBHOOK_CLIENT_NAMES", into("names", &c.Webhook.ClientNames, parseNames), "",
				"Names that this client certificate may have: Common Name, DNS name or URI. If empty, any."),
			optional("WEBHOOK_MAX_CONNECTIONS", into("number", &c.Webhook.MaxConnections, parseCount),
				strconv.Itoa(defaults.MaxConnections),
				"Limit of open connections, of up to 100 KiB each. At the limit, the client with the most connections loses one."),
			optional("WEBHOOK_MAX_HANDSHAKES", into("number", &c.Webhook.MaxHandshakes, parseCount), "",
				"Limit of concurrent TLS handshakes, granted round-robin by address. If empty, half of `GOMAXPROCS`."),
		}},
		{"Metrics and health", []setting{
			lenient(optional("METRICS_PORT", into("port", &c.metrics.port, parsePort), "2112",
				"Port of `/metrics`, `/healthz` and `/readyz` (plain HTTP). 0 takes a free port.")),
			optional("METRICS_BIND", into("IP", &c.metrics.host, parseIP), "",
				"Address that the metrics port listens on. If empty, all addresses."),
			optional("METRICS_ALIASES", choice(&c.MetricAliases, []string{"true", "false"}, true, false), "false",
				"Whether the metrics of kyma-project/runtime-watcher are served, too."),
		}},
		{"Canary", []setting{
			optional("CANARY_LEASE", into("namespace/name", &c.Canary.Lease, parseLease), "",
				"Lease that the agent writes to prove that the API server calls it. If empty, there is no canary."),
			optional("CANARY_INTERVAL", duration(&c.Canary.Interval), defaults.CanaryInterval.String(),
				"Time between two writes of the canary."),
			optional("CANARY_API_SERVER", text("URL", &c.Canary.Server), "",
				"API server that the canary writes to. If empty, the one of the pod's cluster."),
			optional("CANARY_TOKEN_FILE", file(&c.Canary.TokenFile), "",
				"Bearer token of the canary. If empty, the token of the pod's service account."),
			optional("CANARY_CA_CERT", file(&c.Canary.CAFile), "",
				"CAs of `CANARY_API_SERVER`. If empty, the file of the pod's service account."),
		}},
		{"Process", []setting{
			optional(envInstance, text("name", &c.Instance), "",
				"Name of this replica. If empty, `POD_NAME`, `HOSTNAME` or the host name."),
			optional("STOP_DELAY", into("duration", &c.StopDelay, parseDelay), "0s",
				"Time to serve as not ready before the shutdown, so that the API server changes to other replicas."),
			optional("SHUTDOWN_TIMEOUT", duration(&c.ShutdownTimeout), "20s",
				"Time to finish requests and to send pending events."),
			optional("LOG_LEVEL", into("debug, info, warn, error", &c.logLevel, parseLevel), "info",
				"Lowest level that is logged."),
		}},
	}
}

func settings(c *config) []setting {
	var all []setting
	for _, g := range groups(c) {
		all = slices.Concat(all, g.settings)
	}
	return all
}
