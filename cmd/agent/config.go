package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// defaultContract is what the agent speaks unless told otherwise.
const defaultContract = contract.V3

// config is what the settings say.
type config struct {
	webhook, metrics bindAddress

	client       httpmtls.Paths // to the control plane
	serving      httpmtls.Paths // of the webhook; zero: the same as client
	webhookCAs   string
	controlPlane string
	serverName   string
	contract     contract.Version
	protocol     httpmtls.Protocol
	// fallback is the contract to speak where contract is not known, empty for none.
	fallback      contract.Version
	contractRetry time.Duration
	managers      []core.Manager
	instance      string
	settle        time.Duration
	resend        []time.Duration // empty: never
	resendResync  time.Duration
	maxKeys       int
	connections   int
	handshakes    int // 0: half of the processors
	forwarding    time.Duration
	maxBackoff    time.Duration
	heartbeats    time.Duration
	canary        canarySettings
	stopDelay     time.Duration
	shutdown      time.Duration
	logLevel      slog.Level
	effective     values
	getenv        func(string) string
}

// bindAddress is where a server listens.
type bindAddress struct {
	host string
	port int
}

func (a bindAddress) String() string { return net.JoinHostPort(a.host, strconv.Itoa(a.port)) }

// check finds what is wrong with settings that are sound by themselves.
func (c *config) check() error {
	var wrong []error

	if (c.serving.Certificate == "") != (c.serving.Key == "") {
		wrong = append(wrong, errors.New("WEBHOOK_TLS_CERT and WEBHOOK_TLS_KEY: one is missing, want both or none"))
	}

	if c.fallback != "" && !c.contract.Numbered() {
		wrong = append(wrong, fmt.Errorf("CONTRACT_FALLBACK: %s, want it only with KCP_CONTRACT=%s", c.fallback, contract.V3))
	}

	if c.webhook == c.metrics && c.webhook.port != 0 {
		wrong = append(wrong, fmt.Errorf("WEBHOOK_PORT and METRICS_PORT: both are %d, want two ports", c.webhook.port))
	}

	if len(c.resend) > 0 && c.resend[0] <= c.settle {
		wrong = append(wrong, fmt.Errorf("RESEND_AFTER: %v, want more than SETTLE, %v, or 0s", c.resend[0], c.settle))
	}

	// When an agent ends while resends wait, the control plane misses it after two heartbeats. The resync
	// that then stands in must not come before the resends would have.
	if n := len(c.resend); n > 0 && c.contract.Numbered() && c.heartbeats > 0 && c.resend[n-1] >= 2*c.heartbeats {
		wrong = append(wrong, fmt.Errorf("RESEND_AFTER: %v, want less than twice HEARTBEAT_INTERVAL, %v", c.resend[n-1], c.heartbeats))
	}

	return errors.Join(wrong...)
}

// hash changes with the settings, but is the same for all replicas.
func (c *config) hash() string {
	const length = 16

	var text strings.Builder

	for _, v := range c.effective {
		if v.env != envInstance {
			fmt.Fprintf(&text, "%s=%s\n", v.env, v.text)
		}
	}

	sum := sha256.Sum256([]byte(text.String()))

	return hex.EncodeToString(sum[:])[:length]
}

// value is a setting as it is in effect.
type value struct{ env, text string }

type values []value

// LogValue leaves out what is not set. No setting is a secret: files are named, and not shown.
func (all values) LogValue() slog.Value {
	attrs := make([]slog.Attr, 0, len(all))

	for _, v := range all {
		if v.text != "" {
			attrs = append(attrs, slog.String(strings.ToLower(v.env), v.text))
		}
	}

	return slog.GroupValue(attrs...)
}
