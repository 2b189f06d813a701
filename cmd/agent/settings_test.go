package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

var update = flag.Bool("update", false, "write the golden files")

// required are the settings without default.
var required = []string{"CA_CERT=ca.crt", "TLS_CERT=tls.crt", "TLS_KEY=tls.key", "KCP_ADDR=kcp.example.org:443"}

// defaults are what they lead to.
func defaults() config {
	return config{
		webhook:       bindAddress{port: 8443},
		metrics:       bindAddress{port: 2112},
		client:        httpmtls.Paths{CA: "ca.crt", Certificate: "tls.crt", Key: "tls.key"},
		controlPlane:  "kcp.example.org:443",
		contract:      defaultContract,
		protocol:      httpmtls.HTTP2,
		contractRetry: 5 * time.Minute,
		instance:      "pod-1",
		settle:        100 * time.Millisecond,
		resyncAgain:   10 * time.Second,
		maxKeys:       10_000,
		forwarding:    10 * time.Second,
		maxBackoff:    20 * time.Second,
		connections:   512,
		heartbeats:    30 * time.Second,
		canary:        canarySettings{interval: 30 * time.Second},
		shutdown:      20 * time.Second,
		logLevel:      slog.LevelInfo,
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		env, args []string
		want      func(*config)
	}{
		"defaults": {want: func(*config) {}},
		"today's": {
			env: []string{"WEBHOOK_PORT=9443", "METRICS_PORT=9112", "KCP_CONTRACT=v1"},
			want: func(c *config) {
				c.webhook.port, c.metrics.port, c.contract = 9443, 9112, contract.V1
			},
		},
		"empty variables are none": {
			env:  []string{"WEBHOOK_PORT=", "KCP_CONTRACT=", "MANAGERS=", "LOG_LEVEL="},
			want: func(*config) {},
		},
		"flags win": {
			env:  []string{"WEBHOOK_PORT=1", "KCP_ADDR=other:1", "SETTLE=nonsense", "MANAGERS=a"},
			args: []string{"--webhook-port=2", "-kcp-addr", "https://kcp", "--settle=5ms", "--managers="},
			want: func(c *config) {
				c.webhook.port, c.controlPlane, c.settle = 2, "https://kcp", 5*time.Millisecond
			},
		},
		"all others": {
			env: []string{
				"KCP_SERVER_NAME=kcp", "KCP_PROTOCOL=http1", "MANAGERS=a, b", "INSTANCE=me", "SETTLE=0s", "LOOK_AGAIN=3s", "RESYNC_AGAIN=0s", "OUTBOX_MAX_KEYS=7",
				"WEBHOOK_MAX_CONNECTIONS=9", "METRICS_BIND=::1", "WEBHOOK_TLS_CERT=w.crt", "WEBHOOK_TLS_KEY=w.key", "WEBHOOK_CLIENT_CA=api.crt", "LOG_LEVEL=debug",
				"CONTRACT_FALLBACK=v2", "CONTRACT_RETRY=1m", "CANARY_LEASE=kyma-system/agent", "CANARY_INTERVAL=1s", "CANARY_API_SERVER=https://api", "CANARY_TOKEN_FILE=token",
				"CANARY_CA_CERT=api-ca.crt", "FORWARD_TIMEOUT=2s", "MAX_BACKOFF=4s", "HEARTBEAT_INTERVAL=0s", "STOP_DELAY=3s", "SHUTDOWN_TIMEOUT=1m", "WEBHOOK_BIND=127.0.0.1",
			},
			want: func(c *config) {
				c.serverName, c.protocol, c.managers = "kcp", httpmtls.HTTP1, []core.Manager{"a", "b"}
				c.instance, c.settle, c.maxKeys, c.connections, c.forwarding = "me", off, 7, 9, 2*time.Second
				c.maxBackoff, c.lookAgain, c.resyncAgain = 4*time.Second, 3*time.Second, off
				c.heartbeats, c.stopDelay, c.shutdown = off, 3*time.Second, time.Minute
				c.fallback, c.contractRetry = contract.V2, time.Minute
				c.canary = canarySettings{
					types.NamespacedName{Namespace: "kyma-system", Name: "agent"}, time.Second, "https://api", "token", "api-ca.crt",
				}
				c.webhook.host, c.metrics.host, c.logLevel = "127.0.0.1", "::1", slog.LevelDebug
				c.serving, c.webhookCAs = httpmtls.Paths{Certificate: "w.crt", Key: "w.key"}, "api.crt"
			},
		},
		"IPv6": {
			env:  []string{"KCP_ADDR=[2001:db8::1]:443"},
			want: func(c *config) { c.controlPlane = "[2001:db8::1]:443" },
		},
		"same port, other address": {
			env: []string{"METRICS_PORT=8443", "METRICS_BIND=127.0.0.1"},
			want: func(c *config) {
				c.metrics = bindAddress{"127.0.0.1", 8443}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			env := append(append([]string{"POD_NAME=pod-1", "HOSTNAME=host-1"}, required...), test.env...)

			got, err := readSettings(test.args, lookup(env))
			if err != nil {
				t.Fatal(err)
			}

			want := defaults()
			test.want(&want)

			got.getenv, got.effective = nil, nil
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(config{}, bindAddress{}, canarySettings{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWrongSettings(t *testing.T) {
	t.Parallel()

	many := strings.TrimSuffix(strings.Repeat("m,", 101), ",")

	for pair, want := range map[string]string{
		"WEBHOOK_PORT=65536":             `WEBHOOK_PORT: "65536", want a port`,
		"METRICS_PORT=http":              `METRICS_PORT: "http", want a port`,
		"METRICS_PORT=tcp://10.0.0.1:80": "enableServiceLinks",
		"METRICS_PORT=8443":              "want two ports",
		"KCP_ADDR=":                      "KCP_ADDR or --kcp-addr: missing",
		"CA_CERT=":                       "CA_CERT or --ca-cert: missing",
		"KCP_ADDR=http://kcp:80":         "KCP_ADDR: ",
		"KCP_ADDR=kcp:0":                 "want host:port",
		"KCP_ADDR=kcp:":                  "want host:port",
		"KCP_ADDR=:443":                  "want host:port",
		"KCP_ADDR=kcp:443/v1":            "want host:port",
		"KCP_ADDR=kcp:443?a=b":           "want host:port",
		"KCP_ADDR=[::1":                  "want host:port",
		"KCP_ADDR=user:secret@kcp:443":   `"(with credentials)"`,
		"KCP_CONTRACT=v9":                "KCP_CONTRACT: ",
		"KCP_PROTOCOL=spdy":              "want http1 or http2",
		"MANAGERS=a,,B":                  `MANAGERS: `,
		"MANAGERS=a,a":                   "named twice",
		"MANAGERS=" + many:               "want at most 100",
		"SETTLE=-1s":                     `SETTLE: "-1s", want a duration`,
		"SETTLE=1":                       `SETTLE: "1", want a duration`,
		"LOOK_AGAIN=-1s":                 `LOOK_AGAIN: "-1s", want a duration`,
		"LOOK_AGAIN=100ms":               "LOOK_AGAIN: 100ms, want more than SETTLE, 100ms, or 0s",
		"LOOK_AGAIN=60s":                 "LOOK_AGAIN: 1m0s, want less than twice HEARTBEAT_INTERVAL, 30s",
		"OUTBOX_MAX_KEYS=0":              "want a number above 0",
		"FORWARD_TIMEOUT=0s":             "want a duration above 0",
		"HEARTBEAT_INTERVAL=x":           "HEARTBEAT_INTERVAL: ",
		"CONTRACT_FALLBACK=v1":           `CONTRACT_FALLBACK: "v1", want v2`,
		"CONTRACT_RETRY=0s":              "want a duration above 0",
		"CANARY_LEASE=agent":             "want <namespace>/<name>",
		"CANARY_INTERVAL=0s":             "want a duration above 0",
		"STOP_DELAY=-1s":                 "STOP_DELAY: ",
		"SHUTDOWN_TIMEOUT=0s":            "SHUTDOWN_TIMEOUT: ",
		"WEBHOOK_BIND=localhost":         "want an IP address",
		"METRICS_BIND=0.0.0.0:1":         "want an IP address",
		"WEBHOOK_TLS_CERT=w.crt":         "WEBHOOK_TLS_CERT and WEBHOOK_TLS_KEY",
		"LOG_LEVEL=loud":                 "want debug, info, warn or error",
	} {
		t.Run(pair, func(t *testing.T) {
			t.Parallel()

			_, err := readSettings(nil, lookup(append(required, pair)))
			if !errors.Is(err, errSettings) || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one of settings with %s", err, want)
			}

			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error tells a password: %v", err)
			}
		})
	}
}

func TestAllWrongSettingsAreNamedAtOnce(t *testing.T) {
	t.Parallel()

	var stdout, stderr bytes.Buffer

	err := run(t.Context(), []string{"--unknown=1", "--webhook-port=x", "stray", "--also-unknown", "--settle"},
		lookup([]string{"KCP_CONTRACT=v9", "LOG_LEVEL=loud", "MANAGERS=B,C"}), &stdout, &stderr)

	if got := exitCode(err); got != 2 {
		t.Errorf("exit code %d, want 2", got)
	}

	for _, want := range []string{
		"-unknown", "-also-unknown", "-settle", `"stray"`, "--webhook-port: ", "KCP_CONTRACT: ", "LOG_LEVEL: ", `"B"`, `"C"`,
		"KCP_ADDR or", "CA_CERT or", "TLS_CERT or", "TLS_KEY or",
	} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("nothing about %s in:\n%s", want, &stderr)
		}
	}

	if stdout.Len() > 0 {
		t.Errorf("%q on stdout, want nothing", &stdout)
	}
}

func TestWhatWasAskedForGoesToStdout(t *testing.T) {
	t.Parallel()

	for arg, want := range map[string]string{"--version": "agent ", "--help": "--kcp-addr", "-h": "--kcp-addr"} {
		var stdout, stderr bytes.Buffer

		err := run(t.Context(), []string{"--settle=wrong", arg}, lookup(nil), &stdout, &stderr)
		if err != nil || stderr.Len() > 0 || !strings.Contains(stdout.String(), want) {
			t.Errorf("%s: error %v, stdout %q, stderr %q, want %q", arg, err, &stdout, &stderr, want)
		}
	}

	if err := run(t.Context(), []string{"--help"}, lookup(nil), brokenWriter{}, io.Discard); exitCode(err) != 1 {
		t.Errorf("exit code %d of %v for a broken pipe, want 1", exitCode(err), err)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestEverySettingIsInHelp(t *testing.T) {
	t.Parallel()

	text := help()
	seen := map[string]bool{}

	for _, s := range settings() {
		if !strings.Contains(text, "--"+s.flag()+" ") || !strings.Contains(text, s.env) || seen[s.env] {
			t.Errorf("%s is not in the help, or twice", s.env)
		}

		seen[s.env] = true

		if s.required && s.fallback != "" {
			t.Errorf("%s is required and has a default", s.env)
		}

		if s.fallback != "" {
			if err := s.set(&config{}, s.fallback); err != nil {
				t.Errorf("default of %s: %v", s.env, err)
			}
		}
	}
}

// The README embeds this file. Run with -update after a change.
func TestSettingsTableIsFresh(t *testing.T) {
	t.Parallel()

	const file = "settings.md"

	path := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(path, []byte(markdown()), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	if diff := cmp.Diff(string(must(os.ReadFile(path))(t)), markdown()); diff != "" {
		t.Errorf("%s is stale, run go test -run TestSettingsTableIsFresh -update (-file +code):\n%s", path, diff)
	}
}

func TestHashIsThatOfTheConfiguration(t *testing.T) {
	t.Parallel()

	hash := func(env ...string) string {
		c := must(readSettings(nil, lookup(append(required, env...))))(t)

		return c.hash()
	}

	if one, other := hash("INSTANCE=one"), hash("INSTANCE=other"); one != other || len(one) != 16 {
		t.Errorf("hashes of two replicas are %s and %s, want one of 16 digits", one, other)
	}

	if hash() != hash("SETTLE=100ms") {
		t.Error("a default that is written down changed the hash")
	}

	if hash() == hash("SETTLE=101ms") {
		t.Error("another setting did not change the hash")
	}
}
