package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/cmd/agent/internal/watching"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

const defaultContract = contract.V3

// config contains the settings of the program, as the variables and flags set them.
type config struct {
	// Options are the options of package agent. Addresses, build and watches are added at the end.
	agent.Options

	to agent.Connection

	webhook, metrics bindAddress

	transport string
	// proxy is the setting. The value proxyDirect means no proxy. The resolved proxy is in
	// ControlPlane.
	proxy string
	// natsFirst says whether TLS begins before the first line of the NATS server.
	natsFirst bool
	// webhookCA and webhookDomain belong to the agent's own webhook configuration.
	webhookCA, webhookDomain string

	source   string
	informer watching.Settings
	logLevel slog.Level

	resolution
}

const (
	sourceAdmission = "admission"
	sourceInformer  = "informer"
)

type bindAddress struct {
	host string // empty: all addresses
	port int    // 0: a free port
}

func (a bindAddress) String() string { return net.JoinHostPort(a.host, strconv.Itoa(a.port)) }

// checkCombination returns the mistakes in the combination of settings. Each error is one line.
func (c *config) checkCombination() error {
	hasWatches := c.informer.Watches != nil // An empty list also counts.
	isNewest := c.Contract == contract.V3 && c.ControlPlane.Fallback == ""
	return errors.Join(
		option.Unless((c.Webhook.Keys.Certificate == "") == (c.Webhook.Keys.Key == ""),
			"WEBHOOK_TLS_CERT and WEBHOOK_TLS_KEY: one is missing, want both or none"),
		option.Unless(c.webhook != c.metrics || c.webhook.port == 0,
			"WEBHOOK_PORT and METRICS_PORT: both are %d, want two ports", c.webhook.port),
		option.Unless(len(c.Webhook.ClientNames) == 0 || c.Webhook.ClientCAs != "",
			"WEBHOOK_CLIENT_NAMES: want it only with WEBHOOK_CLIENT_CA"),
		option.Unless(c.source != sourceInformer || c.Canary.Lease == types.NamespacedName{},
			"CANARY_LEASE: want it only with SOURCE=%s: the canary proves the webhook", sourceAdmission),
		option.Unless(c.source != sourceInformer || c.Webhook.Configuration == "",
			"WEBHOOK_CONFIGURATION: want it only with SOURCE=%s: an informer has no webhooks", sourceAdmission),
		c.checkOwn(),
		option.Unless(c.source != sourceInformer || hasWatches, "WATCHERS: missing, want it with SOURCE=%s", sourceInformer),
		option.Unless(c.transport != transportNATS || isNewest,
			"TRANSPORT=nats: want CONTROL_PLANE_CONTRACT=v3 and no CONTRACT_FALLBACK"),
		option.Unless(c.transport == transportNATS || !c.natsFirst,
			"NATS_HANDSHAKE_FIRST: want it only with TRANSPORT=%s", transportNATS),
		option.Unless(c.proxy != proxyDirect || c.ControlPlane.ProxyCredentials == "",
			"CONTROL_PLANE_PROXY_CREDENTIALS: want it only with a proxy"),
	)
}

// isOwn reports whether the agent keeps its own webhook configuration.
func (c *config) isOwn() bool { return c.source == sourceAdmission && c.informer.Watches != nil }

func (c *config) checkOwn() error {
	own := c.Webhook.Own
	hasEndpoint := own.URL != "" || own.Service != types.NamespacedName{}
	if !c.isOwn() {
		return errors.Join(
			option.Unless(!hasEndpoint, "WEBHOOK_ENDPOINT: want it only with WATCHERS, and as a webhook"),
			option.Unless(c.webhookCA == "", "WEBHOOK_CA_CERT: want it only with WEBHOOK_ENDPOINT"),
			option.Unless(c.webhookDomain == "", "WEBHOOK_DOMAIN: want it only with WEBHOOK_ENDPOINT"),
		)
	}

	missing := "%s: missing, want it with WATCHERS: the agent makes a webhook configuration of them"
	var invalid error
	if err := watch.Validate(c.informer.Watches); err != nil {
		invalid = fmt.Errorf("WATCHERS: %s", strings.Join(textsOf(err), "; "))
	}

	return errors.Join(
		option.Unless(hasEndpoint, missing, "WEBHOOK_ENDPOINT"),
		option.Unless(c.Webhook.Configuration != "", missing, "WEBHOOK_CONFIGURATION"),
		option.Unless(len(c.informer.Watches) > 0, "WATCHERS: none, want at least one with SOURCE=%s", sourceAdmission),
		invalid,
	)
}

// ownConfiguration contains the mark of the set of names to which the annotation of owners belongs.
func (c *config) ownConfiguration() agent.OwnConfiguration {
	own := c.Webhook.Own
	if !c.isOwn() {
		return own
	}

	own.Watches = c.informer.Watches
	own.ExcludedNamespaces = c.informer.ExcludedNamespaces
	own.CA = c.webhookCA
	own.WebhookDomain = c.webhookDomain

	if prefix, _, found := strings.Cut(c.OwnerAnnotation, "/"); found {
		own.Mark = prefix + "/installed-by"
	}
	return own
}

func (c *config) doubts() (doubts []string) {
	if c.Webhook.ClientCAs != "" && len(c.Webhook.ClientNames) == 0 {
		doubts = append(doubts, "WEBHOOK_CLIENT_CA without WEBHOOK_CLIENT_NAMES: any certificate of these CAs is accepted")
	}

	// The default of an image may set a fallback, while its Deployment sets an older contract.
	if c.ControlPlane.Fallback != "" && c.Contract.NeedsOwner() {
		doubts = append(doubts, "CONTRACT_FALLBACK is without effect, as CONTROL_PLANE_CONTRACT=v1 has none")
	}
	return doubts
}

// settingsHash changes with the settings. It is the same for all replicas.
func (c *config) settingsHash() string {
	const length = 16

	var text strings.Builder
	for _, e := range c.effective {
		if e.env != envInstance {
			fmt.Fprintf(&text, "%s=%s\n", e.env, e.text)
		}
	}

	sum := sha256.Sum256([]byte(text.String()))
	return hex.EncodeToString(sum[:])[:length]
}

func (c *config) agentOptions(log *slog.Logger, collectors ...prom.Collector) agent.Options {
	opts := c.Options
	opts.Managers = c.informer.Managers(c.Managers)
	opts.Version = thisBuild().version
	opts.ConfigHash = c.settingsHash()
	opts.Webhook.Address = c.webhook.String()
	opts.MetricsAddress = c.metrics.String()
	opts.Webhook.Own = c.ownConfiguration()
	opts.Outbox = c.outboxOptions()
	opts.Collectors = collectors
	opts.Logger = log

	return opts
}

// outboxOptions enables settling and resending only for a webhook, because an informer sees objects
// after the commit.
func (c *config) outboxOptions() agent.Outbox {
	opts := c.Outbox
	opts.MinBackoff = min(outbox.Defaults().MinBackoff, opts.MaxBackoff)
	isSettling := func(delay time.Duration) bool { return delay <= opts.Settle }
	opts.Resend = slices.DeleteFunc(slices.Clone(opts.Resend), isSettling)

	if c.source == sourceInformer {
		opts.Settle = off
		opts.Resend = []time.Duration{}
		opts.ResendResync = off
	}
	return opts
}

// off is the value of a library's duration that turns a feature off, as 0 is the library's default.
const off = -1

const (
	transportHTTPS = "https"
	transportNATS  = "nats"
)

// proxyDirect is the setting for no proxy, regardless of the environment.
const proxyDirect = "direct"

func (c *config) informerSettings() watching.Settings {
	settings := c.informer
	settings.Getenv = c.env.get
	settings.OwnerAnnotation = c.OwnerAnnotation
	settings.RequireOwner = c.Contract.NeedsOwner()
	return settings
}
