package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission/canary"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// errSettings means that settings are wrong. An error that wraps it names all of them.
var errSettings = errors.New("wrong settings, agent --help lists them")

const envInstance = "INSTANCE"

// defaultConnections has room for some API servers, each with a connection per write that waits and 25 that do not.
const defaultConnections = 512

// setting is something that can be set, by an environment variable or by the flag of the same name.
type setting struct {
	// env is the variable; the flag has its name in lower case with '-' for '_'.
	env string
	// kind says what a value looks like, in a word or two.
	kind string
	// fallback is the default; empty: none.
	fallback string
	required bool
	help     string
	// set parses a value that is not empty. The error says what is wanted.
	set func(c *config, text string) error
}

func (s setting) flag() string { return strings.ReplaceAll(strings.ToLower(s.env), "_", "-") }

// settings are all there are, in the order of the documentation. WEBHOOK_PORT to KCP_CONTRACT are what is deployed today.
func settings() []setting {
	return []setting{
		{
			env: "WEBHOOK_PORT", kind: "port", fallback: "8443", help: "Port of the webhook (TLS 1.3); 0 takes a free one",
			set: port(func(c *config) *int { return &c.webhook.port }),
		},
		{
			env: "METRICS_PORT", kind: "port", fallback: "2112",
			help: "Port of `/metrics`, `/healthz` and `/readyz` (plain HTTP); 0 takes a free one",
			set:  port(func(c *config) *int { return &c.metrics.port }),
		},
		{
			env: "CA_CERT", kind: "file", required: true, help: "CAs that the control plane's certificate must chain to, PEM",
			set: text(func(c *config) *string { return &c.client.CA }),
		},
		{
			env: "TLS_CERT", kind: "file", required: true, help: "Certificate of this runtime for the control plane, and for the webhook, too, PEM",
			set: text(func(c *config) *string { return &c.client.Certificate }),
		},
		{
			env: "TLS_KEY", kind: "file", required: true, help: "Its private key, PEM",
			set: text(func(c *config) *string { return &c.client.Key }),
		},
		{
			env: "KCP_ADDR", kind: "host:port", required: true, help: "Address of the control plane",
			set: parsed(func(c *config) *string { return &c.controlPlane }, parseAddress),
		},
		{
			env: "KCP_CONTRACT", kind: versions(), fallback: string(defaultContract), help: "Contract to speak with the control plane",
			set: parsed(func(c *config) *contract.Version { return &c.contract }, contract.ParseVersion),
		},
		{
			env: "CONTRACT_FALLBACK", kind: "v2",
			help: "Contract to speak with managers whose control plane does not know `KCP_CONTRACT`; none if empty: events are kept",
			set:  parsed(func(c *config) *contract.Version { return &c.fallback }, parseFallback),
		},
		{
			env: "CONTRACT_RETRY", kind: "duration", fallback: httpmtls.DefaultRetryNewest.String(),
			help: "Time after which `KCP_CONTRACT` is tried again, where another one is spoken",
			set:  parsed(func(c *config) *duration { return &c.contractRetry }, parseDuration),
		},
		{
			env: "KCP_SERVER_NAME", kind: "name", help: "Name that the control plane's certificate must be for; the host of `KCP_ADDR` if empty",
			set: text(func(c *config) *string { return &c.serverName }),
		},
		{
			env: "KCP_PROTOCOL", kind: "http1, http2", fallback: "http2", help: "HTTP version to speak with the control plane",
			set: parsed(protocolOf, parseProtocol),
		},
		{
			env: "MANAGERS", kind: "names", help: "Managers that are known from the start, separated by commas; others from their first event on",
			set: parsed(managersOf, parseManagers),
		},
		{
			env: envInstance, kind: "name", help: "Tells replicas apart; `POD_NAME`, `HOSTNAME` or the name of the host if empty",
			set: text(func(c *config) *string { return &c.instance }),
		},
		{
			env: "SETTLE", kind: "duration", fallback: outbox.DefaultSettle.String(),
			help: "Wait before an event is sent, as it is seen before its write is committed; 0s is none",
			set:  durationOrOff(func(c *config) *duration { return &c.settle }),
		},
		{
			env: "RESEND_AFTER", kind: "durations", fallback: "3s,35s",
			help: "Times after which a delivered event is sent once more, for a write that is committed later than `SETTLE`; 0s is never",
			set:  parsed(func(c *config) *[]duration { return &c.resend }, parseDelays),
		},
		{
			env: "RESEND_RESYNC", kind: "duration", fallback: outbox.DefaultResendResync.String(),
			help: "Time after which a resync is sent once more, longer than the timeout of the webhook; 0s is never",
			set:  durationOrOff(func(c *config) *duration { return &c.resendResync }),
		},
		{
			env: "OUTBOX_MAX_KEYS", kind: "number", fallback: strconv.Itoa(outbox.DefaultMaxKeys),
			help: "Distinct events to keep while the control plane takes none",
			set:  parsed(func(c *config) *int { return &c.maxKeys }, parseCount),
		},
		{
			env: "FORWARD_TIMEOUT", kind: "duration", fallback: outbox.DefaultForwardTimeout.String(),
			help: "Time that one attempt to forward may take",
			set:  parsed(func(c *config) *duration { return &c.forwarding }, parseDuration),
		},
		{
			env: "MAX_BACKOFF", kind: "duration", fallback: outbox.DefaultMaxBackoff.String(),
			help: "Longest wait between two attempts to forward, unless the control plane asks for a longer one",
			set:  parsed(func(c *config) *duration { return &c.maxBackoff }, parseDuration),
		},
		{
			env: "HEARTBEAT_INTERVAL", kind: "duration", fallback: outbox.DefaultHeartbeatInterval.String(),
			help: "Longest time between two heartbeats, with contracts that carry them; 0s is none",
			set:  durationOrOff(func(c *config) *duration { return &c.heartbeats }),
		},
		{
			env: "CANARY_LEASE", kind: "namespace/name",
			help: "Lease that the agent writes, to see whether the API server calls it; no canary if empty",
			set:  parsed(func(c *config) *types.NamespacedName { return &c.canary.lease }, parseLease),
		},
		{
			env: "CANARY_INTERVAL", kind: "duration", fallback: canary.DefaultInterval.String(), help: "Time between two writes of the canary",
			set: parsed(func(c *config) *duration { return &c.canary.interval }, parseDuration),
		},
		{
			env: "CANARY_API_SERVER", kind: "URL", help: "API server that the canary writes to; that of the cluster of the agent's pod if empty",
			set: text(func(c *config) *string { return &c.canary.server }),
		},
		{
			env: "CANARY_TOKEN_FILE", kind: "file", help: "Token that the canary shows; that of the pod's service account if empty",
			set: text(func(c *config) *string { return &c.canary.token }),
		},
		{
			env: "CANARY_CA_CERT", kind: "file", help: "CAs of that API server, PEM; those of the pod's service account if empty",
			set: text(func(c *config) *string { return &c.canary.ca }),
		},
		{
			env: "STOP_DELAY", kind: "duration", fallback: "0s",
			help: "Time to go on serving while not ready, before the shutdown begins, so that the API server gets to know other replicas",
			set:  parsed(func(c *config) *duration { return &c.stopDelay }, parseDelay),
		},
		{
			env: "SHUTDOWN_TIMEOUT", kind: "duration", fallback: "20s", help: "Time to answer, to deliver what is pending and to stop",
			set: parsed(func(c *config) *duration { return &c.shutdown }, parseDuration),
		},
		{
			env: "WEBHOOK_BIND", kind: "IP", help: "Address of the webhook; all if empty",
			set: parsed(func(c *config) *string { return &c.webhook.host }, parseIP),
		},
		{
			env: "WEBHOOK_MAX_CONNECTIONS", kind: "number", fallback: strconv.Itoa(defaultConnections),
			help: "Open connections of the webhook; beyond them, whoever has the most loses one",
			set:  parsed(func(c *config) *int { return &c.connections }, parseCount),
		},
		{
			env: "WEBHOOK_MAX_HANDSHAKES", kind: "number",
			help: "TLS handshakes at the webhook that compute at once, in turns of their addresses; half of `GOMAXPROCS` if empty",
			set:  parsed(func(c *config) *int { return &c.handshakes }, parseCount),
		},
		{
			env: "METRICS_BIND", kind: "IP", help: "Address of the metrics port; all if empty",
			set: parsed(func(c *config) *string { return &c.metrics.host }, parseIP),
		},
		{
			env: "WEBHOOK_TLS_CERT", kind: "file", help: "Certificate of the webhook, PEM; `TLS_CERT` if empty",
			set: text(func(c *config) *string { return &c.serving.Certificate }),
		},
		{
			env: "WEBHOOK_TLS_KEY", kind: "file", help: "Its private key, PEM; `TLS_KEY` if empty",
			set: text(func(c *config) *string { return &c.serving.Key }),
		},
		{
			env: "WEBHOOK_CLIENT_CA", kind: "file", help: "CAs of the client certificate that the API server must show, PEM; none is asked for if empty",
			set: text(func(c *config) *string { return &c.webhookCAs }),
		},
		{
			env: "LOG_LEVEL", kind: "debug, info, warn, error", fallback: "info", help: "Least level that is logged",
			set: parsed(logLevelOf, parseLevel),
		},
	}
}

// readSettings takes each setting from its flag, or else its variable, or else its default. An empty variable is as good as none. The
// error is errHelp, errVersion, or wraps errSettings and names everything that is wrong.
func readSettings(args []string, getenv func(string) string) (config, error) {
	all := settings()

	given, err := readFlags(flagsOf(all), args)
	if errors.Is(err, errHelp) || errors.Is(err, errVersion) {
		return config{}, err
	}

	c, wrong := config{getenv: getenv}, []error{err}

	for _, s := range all {
		wrong = append(wrong, s.apply(&c, given, getenv))
	}

	if err := errors.Join(append(wrong, c.check())...); err != nil {
		return config{}, fmt.Errorf("%w:\n%w", errSettings, err)
	}

	return c, nil
}

// apply sets s from wherever it is given.
func (s setting) apply(c *config, given map[string]string, getenv func(string) string) error {
	name := s.env
	text := getenv(s.env)

	if flagged, ok := given[s.flag()]; ok {
		name, text = "--"+s.flag(), flagged
	}

	if s.env == envInstance && text == "" {
		text = defaultInstance(getenv)
	}

	text = cmp.Or(text, s.fallback)
	c.effective = append(c.effective, value{s.env, text})

	switch {
	case text != "":
		return prefix(name, s.set(c, text))
	case s.required:
		return fmt.Errorf("%s or --%s: missing, want a %s: %s", s.env, s.flag(), s.kind, s.help)
	default:
		return nil
	}
}

// defaultInstance is the name of the pod, or else of the machine.
func defaultInstance(getenv func(string) string) string {
	host, _ := os.Hostname() // No name is no reason to fail.

	return cmp.Or(getenv("POD_NAME"), getenv("HOSTNAME"), host)
}

func prefix(name string, err error) error {
	if err == nil {
		return nil
	}

	return fmt.Errorf("%s: %w", name, err)
}

// flagsOf reports which flags there are.
func flagsOf(all []setting) func(name string) bool {
	return func(name string) bool {
		return slices.ContainsFunc(all, func(s setting) bool { return s.flag() == name })
	}
}
