package main

import (
	"slices"
	"strconv"

	"github.com/runtime-watcher/runtime-watcher/cmd/agent/internal/watching"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
)

type group struct {
	title    string
	settings []setting
}

func groups(c *config) []group {
	transports := []string{transportHTTPS, transportNATS}
	sources := []string{sourceAdmission, sourceInformer}
	return []group{
		{"Required", []setting{
			required("CA_CERT", file(&c.to.Keys.CA),
				"CAs that sign the control plane's certificate."),
			required("TLS_CERT", file(&c.to.Keys.Certificate),
				"Client certificate of this runtime. "+
					"The webhook also serves this certificate, unless `WEBHOOK_TLS_CERT` is set."),
			required("TLS_KEY", file(&c.to.Keys.Key),
				"Private key of `TLS_CERT`."),
			required("CONTROL_PLANE_ADDRESS", into("host:port", &c.to.Address, parseAddress),
				"Address of the control plane: host, host:port or https://host:port. Default port: 443, or "+
					"4222 with `nats`.").
				alsoAs("KCP_ADDR"),
		}},
		{"Control plane", []setting{
			optional("TRANSPORT", choice(&c.transport, transports, transports...), transportHTTPS,
				"How events are sent: by HTTPS to a listener or gateway, or through the NATS server at `CONTROL_PLANE_ADDRESS`. "+
					"With `nats`, the Common Name of `TLS_CERT` names the runtime, and `CONTROL_PLANE_PROTOCOL` has no effect."),
			optional("CONTROL_PLANE_CONTRACT", into(versions(), &c.Contract, contract.ParseVersion), string(defaultContract),
				"Wire contract to send events with.").alsoAs("KCP_CONTRACT"),
			optional("CONTRACT_FALLBACK", choice(&c.ControlPlane.Fallback, []string{"v2"}, contract.V2), "",
				"Contract to use while the control plane does not support `CONTROL_PLANE_CONTRACT`. "+
					"If empty, events wait until the control plane supports it."),
			optional("CONTRACT_RETRY", duration(&c.ControlPlane.RetryNewest), defaults.RetryNewest.String(),
				"Time between two attempts with `CONTROL_PLANE_CONTRACT`, plus up to a quarter, while the fallback is in use."),
			optional("CONTROL_PLANE_SERVER_NAME", text("name", &c.ControlPlane.ServerName), "",
				"Server name to expect in the control plane's certificate. If empty, the host of `CONTROL_PLANE_ADDRESS`.").
				alsoAs("KCP_SERVER_NAME"),
			optional("CONTROL_PLANE_PROTOCOL", choice(&c.ControlPlane.Protocol, []string{"http1", "http2"}, "http/1.1", "h2"), "",
				"HTTP version for connections to the control plane. "+
					"If empty, http1 with v3 and at most one manager, otherwise http2.").
				alsoAs("KCP_PROTOCOL"),
			optional("CONTROL_PLANE_PROXY", into("http://host:port, "+proxyDirect, &c.proxy, parseProxy), "",
				"HTTP proxy for connections to the control plane (CONNECT), or `"+proxyDirect+"` for no proxy. "+
					"If empty, `HTTPS_PROXY` and `NO_PROXY` apply. Connections to the API server never use a proxy."),
			optional("CONTROL_PLANE_PROXY_CREDENTIALS", credentialsFile(&c.ControlPlane.ProxyCredentials), "",
				"File with `user:password` for the proxy, such as a key of a mounted Secret. The agent reads the "+
					"file for each connection."),
			optional("NATS_HANDSHAKE_FIRST", choice(&c.natsFirst, []string{"true", "false"}, true, false), "false",
				"Whether TLS begins before the first line of the NATS server. "+
					"A server with `handshake_first: true` requires this setting."),
			optional("MANAGERS", c.managersValue(), "",
				"Managers to report to, separated by commas, in addition to the managers in `MANAGERS_FILE` and `WATCHERS`. "+
					"Each manager gets a resync when the agent starts. "+
					"For any other manager, the webhook answers 404, unless this list contains `*`. "+
					"If none of the three settings is set, the agent learns each manager from its first review."),
			optional("MANAGERS_FILE", file(&c.ManagersFile), "",
				"File with more managers, one per line. The agent reads the file every 10 s. A new manager gets a "+
					"resync."),
			optional("FORWARD_TIMEOUT", duration(&c.Outbox.ForwardTimeout), outbox.Defaults().ForwardTimeout.String(),
				"Timeout of one attempt to send events."),
			optional("MAX_BACKOFF", duration(&c.Outbox.MaxBackoff), outbox.Defaults().MaxBackoff.String(),
				"Longest delay between two attempts, unless the control plane requests a longer delay. "+
					"After a 401 or 403, the delay is at least 30s."),
			optional("HEARTBEAT_INTERVAL", durationOrOff(&c.Outbox.HeartbeatInterval),
				outbox.Defaults().HeartbeatInterval.String(),
				"Longest time between two heartbeats, with contract v3. 0s turns heartbeats off. "+
					"With 5m, an agent that ends is noticed after about 35s if it connects directly over mTLS, "+
					"otherwise within 10m."),
		}},
		{"Events", []setting{
			optional("SETTLE", durationOrOff(&c.Outbox.Settle), outbox.Defaults().Settle.String(),
				"Delay before an event is sent, because the API server calls the webhook before the commit. "+
					"If the operator checks the reads of its reconciles, and not earlier than after SETTLE, "+
					"the delay is at most 10ms. 0s means no delay."),
			optional("RESEND_AFTER", into("durations", &c.Outbox.Resend, parseDelays), "3s,35s",
				"Increasing delays after which a delivered event is sent again, "+
					"in case its write is committed late. 0s turns the resends off."),
			optional("RESEND_RESYNC", durationOrOff(&c.Outbox.ResendResync), outbox.Defaults().ResendResync.String(),
				"Delay after which a resync is sent again, in case a write is committed late. "+
					"The delay must exceed the timeout of each webhook in this cluster (at most 30s). 0s turns the "+
					"resend off."),
			optional("OUTBOX_MAX_KEYS", into("number", &c.Outbox.MaxKeys, parseCount), strconv.Itoa(outbox.Defaults().MaxKeys),
				"Number of distinct events to keep while the control plane does not accept events. "+
					"A resync replaces events beyond this limit."),
			optional("OUTBOX_MAX_BYTES", into("number", &c.Outbox.MaxBytes, parseCount), strconv.Itoa(outbox.Defaults().MaxBytes),
				"Memory for these events in bytes. An event needs about 600 bytes and the length of its names. "+
					"A resync replaces events beyond this limit."),
		}},
		{"Source", []setting{
			optional("OWNER_ANNOTATION", into("annotation", &c.OwnerAnnotation, parseAnnotation), core.OwnerAnnotation,
				"Annotation of a watched object that names the object of this runtime in the control plane. "+
					"If your operator has its own names, set the annotation of the operator."),
			optional("SOURCE", choice(&c.source, sources, sources...), sourceAdmission,
				"How the agent sees changes: as a webhook before the commit, or by watching the API server after the commit. "+
					"With `informer`, `SETTLE`, `RESEND_AFTER`, `RESEND_RESYNC` and the settings of the webhook have no effect."),
			optional("WATCHERS", into("Watchers in YAML", &c.informer.Watches, watching.Watches), "",
				"`Watcher` resources to watch. Required with `SOURCE=informer`, which cannot watch a subresource. "+
					"As a webhook, the agent creates `WEBHOOK_CONFIGURATION` from the Watchers and maintains it. "+
					"Watchers with `spec.matchConditions` are refused."),
			optional("EXCLUDED_NAMESPACES", into("names", &c.informer.ExcludedNamespaces, parseNames), "",
				"Namespaces that are not watched. If empty, the informer watches all namespaces, and the agent's "+
					"own webhook configuration excludes only `kube-system` and the namespace of the Service."),
			optional("INFORMER_API_SERVER", text("URL", &c.informer.Server), "",
				"API server that the informer watches. If empty, the API server of the pod's cluster."),
			optional("INFORMER_TOKEN_FILE", file(&c.informer.TokenFile), "",
				"Bearer token of the informer. If empty, the token of the pod's service account."),
			optional("INFORMER_CA_CERT", file(&c.informer.CAFile), "",
				"CAs of `INFORMER_API_SERVER`. If empty, the file of the pod's service account."),
		}},
		{"Webhook", []setting{
			lenient(optional("WEBHOOK_PORT", into("port", &c.webhook.port, parsePort), "8443",
				"Port of the webhook (TLS 1.3). With 0, the system chooses a free port.")),
			optional("WEBHOOK_BIND", into("IP", &c.webhook.host, parseIP), "",
				"IP address that the webhook listens on. If empty, all addresses."),
			optional("WEBHOOK_TLS_CERT", file(&c.Webhook.Keys.Certificate), "",
				"Server certificate of the webhook. If empty, `TLS_CERT`."),
			optional("WEBHOOK_TLS_KEY", file(&c.Webhook.Keys.Key), "",
				"Private key of `WEBHOOK_TLS_CERT`."),
			optional("WEBHOOK_CLIENT_CA", file(&c.Webhook.ClientCAs), "",
				"CAs that sign the API server's client certificate. If empty, the webhook requests no certificate."),
			optional("WEBHOOK_CLIENT_NAMES", into("names", &c.Webhook.ClientNames, parseNames), "",
				"Names that are accepted in the API server's client certificate: Common Name, DNS name or URI. If "+
					"empty, any name."),
			optional("WEBHOOK_CONFIGURATION", text("name", &c.Webhook.Configuration), "",
				"ValidatingWebhookConfiguration of the agent. The agent reads the configuration at the interval of the canary "+
					"and reports webhooks that differ from the applied configuration. If empty, the agent does not "+
					"compare webhooks."),
			optional("WEBHOOK_ENDPOINT", into("namespace/name[:port], URL", &c.Webhook.Own, parseEndpoint), "",
				"Service or https URL at which the API server reaches the agent. Required for a webhook with `WATCHERS`: "+
					"the agent then creates `WEBHOOK_CONFIGURATION` and restores it when another program changes it."),
			optional("WEBHOOK_CA_CERT", file(&c.webhookCA), "",
				"CAs of the webhook's server certificate, for the webhook configuration. If empty, `CA_CERT`."),
			optional("WEBHOOK_DOMAIN", text("domain", &c.webhookDomain), "",
				"Domain at the end of the webhooks' names. If empty, `kyma-project.io`."),
			optional("WEBHOOK_MAX_CONNECTIONS", into("number", &c.Webhook.MaxConnections, parseCount),
				strconv.Itoa(defaults.MaxConnections),
				"Limit on open connections, each of which needs up to 100 KiB. "+
					"At the limit, a connection of the client with the most connections is closed. If more than a quarter "+
					"of the connections have not completed the TLS handshake, one of those connections is closed instead."),
			optional("WEBHOOK_MAX_HANDSHAKES", into("number", &c.Webhook.MaxHandshakes, parseCount), "",
				"Limit on concurrent TLS handshakes. Client addresses take turns. If empty, half of "+
					"`GOMAXPROCS`, but at least 1."),
		}},
		{"Metrics and health", []setting{
			lenient(optional("METRICS_PORT", into("port", &c.metrics.port, parsePort), "2112",
				"Port of `/metrics`, `/healthz` and `/readyz` (plain HTTP). With 0, the system chooses a free port.")),
			optional("METRICS_BIND", into("IP", &c.metrics.host, parseIP), "",
				"IP address that the metrics port listens on. If empty, all addresses."),
			optional("METRICS_ALIASES", choice(&c.MetricAliases, []string{"true", "false"}, true, false), "false",
				"Whether the agent also serves the metrics of kyma-project/runtime-watcher."),
		}},
		{"Canary", []setting{
			optional("CANARY_LEASE", into("namespace/name", &c.Canary.Lease, parseLease), "",
				"Lease that the agent writes to prove that the API server calls it. If empty, there is no canary."),
			optional("CANARY_INTERVAL", duration(&c.Canary.Interval), defaults.CanaryInterval.String(),
				"Time between two writes of the canary."),
			optional("CANARY_API_SERVER", text("URL", &c.Canary.Server), "",
				"API servers that the canary writes to, separated by commas. If empty, the API server of the pod's "+
					"cluster."),
			optional("CANARY_TOKEN_FILE", file(&c.Canary.TokenFile), "",
				"Bearer token of the canary. If empty, the token of the pod's service account."),
			optional("CANARY_CA_CERT", file(&c.Canary.CAFile), "",
				"CAs of `CANARY_API_SERVER`. If empty, the file of the pod's service account."),
		}},
		{"Process", []setting{
			optional(envInstance, text("name", &c.Instance), "",
				"Name of this replica. If empty, `POD_NAME`, `HOSTNAME` or the host name."),
			optional("STOP_DELAY", into("duration", &c.StopDelay, parseDelay), "0s",
				"Time before the shutdown in which the agent reports that it is not ready but still serves, "+
					"so that the API server switches to other replicas."),
			optional("SHUTDOWN_TIMEOUT", duration(&c.ShutdownTimeout), "20s",
				"Time limit for finishing requests and sending pending events during the shutdown."),
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

// managersValue stores a list of names. If the list contains "*", the webhook also accepts other
// managers.
func (c *config) managersValue() value {
	return value{"names", func(list string) (err error) {
		c.Managers, c.OtherManagers, err = parseManagers(list)
		return err
	}}
}
