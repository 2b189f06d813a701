package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/cmd/agent/internal/watching"
	"github.com/runtime-watcher/runtime-watcher/cmd/agent/internal/webhookconfig"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
	"github.com/runtime-watcher/runtime-watcher/internal/testcache"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

var update = flag.Bool("update", false, "write the settings into docs/reference/agent.md")

// anyFile exists. Settings only need files that can be opened.
const anyFile = "settings.go"

// minimal are the settings without default.
var minimal = []string{
	"CA_CERT=" + anyFile, "TLS_CERT=" + anyFile, "TLS_KEY=" + anyFile, "KCP_ADDR=kcp.example.org:443",
}

// defaultConfig is the configuration with only those.
func defaultConfig() config {
	c := config{
		webhook: bindAddress{port: 8443}, metrics: bindAddress{port: 2112},
		source: sourceAdmission, transport: transportHTTPS, logLevel: slog.LevelInfo,
	}

	c.to = agent.Connection{
		Address: "kcp.example.org:443", Keys: keys.Paths{CA: anyFile, Certificate: anyFile, Key: anyFile},
	}

	c.Options = agent.Options{
		Contract: defaultContract, OwnerAnnotation: core.OwnerAnnotation, Instance: "pod-1", ShutdownTimeout: 20 * time.Second,
		ControlPlane: agent.ControlPlane{
			RetryNewest: 5 * time.Minute,
		},
		Webhook: agent.Webhook{MaxConnections: defaults.MaxConnections},
		Canary:  agent.Canary{Interval: 30 * time.Second},
		Outbox: agent.Outbox{
			Settle: 100 * time.Millisecond, Resend: outbox.Defaults().Resend, ResendResync: outbox.Defaults().ResendResync,
			MaxKeys: 10_000, MaxBytes: 7 << 20, ForwardTimeout: 10 * time.Second, MaxBackoff: 20 * time.Second,
			HeartbeatInterval: 30 * time.Second,
		},
	}

	return c
}

const watcherText = `{"kind": "Watcher", "metadata": {"name": "demo"}, "spec": {"manager": "demo",
"resourceToWatch": {"group": "apps", "version": "v1", "resource": "deployments"}, "labelsToWatch": {"a": "b"}}}`

// The names of a deployed agent stay, so that it can get this image.
func TestFormerNamesOfTheControlPlane(t *testing.T) {
	t.Parallel()

	material := minimal[:3]
	read := func(env, args []string) (config, error) {
		return readSettings(args, lookup(slices.Concat(material, env)))
	}

	former := []string{"KCP_ADDR=kcp:1", "KCP_CONTRACT=v2", "KCP_SERVER_NAME=a.b", "KCP_PROTOCOL=http1"}
	names := []string{
		"CONTROL_PLANE_ADDRESS=kcp:1", "CONTROL_PLANE_CONTRACT=v2", "CONTROL_PLANE_SERVER_NAME=a.b", "CONTROL_PLANE_PROTOCOL=http1",
	}

	var hashes []string
	for name, test := range map[string]struct{ env, args []string }{
		"former names":       {env: former},
		"names":              {env: names},
		"both, and equal":    {env: slices.Concat(former, names)},
		"one of each":        {env: slices.Concat(former[:2], names[2:])},
		"an empty one":       {env: append(slices.Clone(names), "KCP_ADDR=", "KCP_CONTRACT=")},
		"a former flag wins": {env: append(slices.Clone(names[1:]), "CONTROL_PLANE_ADDRESS=other:1"), args: []string{"--kcp-addr=kcp:1"}},
		"a flag wins":        {env: append(slices.Clone(former[1:]), "KCP_ADDR=other:1"), args: []string{"--control-plane-address=kcp:1"}},
		"equal flags":        {env: names[1:], args: []string{"--control-plane-address=kcp:1", "--kcp-addr=kcp:1"}},
	} {
		c, err := read(test.env, test.args)
		noError(t, err)
		if got := c.ControlPlane; c.to.Address != "kcp:1" || got.ServerName != "a.b" || got.Protocol != "http/1.1" ||
			c.Contract != contract.V2 || len(c.warnings) > 0 {
			t.Errorf("%s: %+v, %s, warnings %q", name, got, c.Contract, c.warnings)
		}

		hashes = append(hashes, c.settingsHash())
	}

	slices.Sort(hashes)
	if len(slices.Compact(hashes)) != 1 {
		t.Errorf("the hash depends on the name that is used: %q", hashes)
	}

	for name, test := range map[string]struct {
		env, args []string
		want      string
	}{
		"two addresses": {
			env:  append(slices.Clone(former), "CONTROL_PLANE_ADDRESS=other:1"),
			want: `CONTROL_PLANE_ADDRESS is "other:1" and KCP_ADDR is "kcp:1": want one of them, or the same value in both`,
		},
		"two contracts": {
			env: append(slices.Clone(former), "CONTROL_PLANE_CONTRACT=v3"), want: `CONTROL_PLANE_CONTRACT is "v3" and KCP_CONTRACT is "v2"`,
		},
		"two flags": {
			env: former[1:], args: []string{"--kcp-addr=a:1", "--control-plane-address=b:1"},
			want: `--control-plane-address is "b:1" and --kcp-addr is "a:1"`,
		},
		"a wrong value by its own name": {env: append(slices.Clone(former[:1]), "KCP_CONTRACT=v9"), want: "KCP_CONTRACT: "},
	} {
		if _, err := read(test.env, test.args); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want it to say %q", name, err, test.want)
		}
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()

	tests := map[string]struct {
		env, args []string
		want      func(*config)
	}{
		"defaults": {want: func(*config) {}},
		"today's": {
			env: []string{"WEBHOOK_PORT=9443", "METRICS_PORT=9112", "KCP_CONTRACT=v1"},
			want: func(c *config) {
				c.webhook.port = 9443
				c.metrics.port = 9112
				c.Contract = contract.V1
			},
		},
		"empty variables are none": {
			env:  []string{"WEBHOOK_PORT=", "KCP_CONTRACT=", "MANAGERS=", "LOG_LEVEL="},
			want: func(*config) {},
		},
		"NATS": {
			env:  []string{"TRANSPORT=nats", "NATS_HANDSHAKE_FIRST=true"},
			want: func(c *config) { c.transport, c.natsFirst = transportNATS, true },
		},
		"flags win": {
			env:  []string{"WEBHOOK_PORT=1", "KCP_ADDR=other:1", "SETTLE=nonsense", "MANAGERS=a"},
			args: []string{"--webhook-port=2", "-kcp-addr", "https://kcp", "--settle=5ms", "--managers="},
			want: func(c *config) {
				c.webhook.port = 2
				c.to.Address = "https://kcp"
				c.Outbox.Settle = 5 * time.Millisecond
			},
		},
		"all others": {
			env: []string{
				"KCP_SERVER_NAME=kcp", "KCP_PROTOCOL=http1", "MANAGERS=a, b", "INSTANCE=me",
				"SETTLE=0s", "RESEND_AFTER=0s", "RESEND_RESYNC=0s", "OUTBOX_MAX_KEYS=7", "OUTBOX_MAX_BYTES=7000",
				"WEBHOOK_CONFIGURATION=watcher", "WEBHOOK_MAX_CONNECTIONS=9", "WEBHOOK_MAX_HANDSHAKES=5", "METRICS_BIND=::1",
				"WEBHOOK_TLS_CERT=nats.go", "WEBHOOK_TLS_KEY=table.go",
				"WEBHOOK_CLIENT_CA=config.go", "WEBHOOK_CLIENT_NAMES=kube-apiserver, front-proxy", "LOG_LEVEL=debug",
				"CONTRACT_FALLBACK=v2", "CONTRACT_RETRY=1m", "CANARY_LEASE=kyma-system/agent", "CANARY_INTERVAL=1s",
				"CANARY_API_SERVER=https://api", "CANARY_TOKEN_FILE=memory.go", "CANARY_CA_CERT=commands.go",
				"FORWARD_TIMEOUT=2s", "MAX_BACKOFF=4s", "HEARTBEAT_INTERVAL=0s", "STOP_DELAY=3s",
				"SHUTDOWN_TIMEOUT=1m", "WEBHOOK_BIND=127.0.0.1", "MANAGERS_FILE=version.go", "OWNER_ANNOTATION=example.com/owned-by",
				"CONTROL_PLANE_PROXY=http://proxy:3128", "CONTROL_PLANE_PROXY_CREDENTIALS=proxy.go",
			},
			want: func(c *config) {
				c.ControlPlane.ServerName = "kcp"
				c.ControlPlane.Protocol = "http/1.1"
				c.Managers = []core.Manager{"a", "b"}
				c.ManagersFile = "version.go"
				c.OwnerAnnotation = "example.com/owned-by"
				c.proxy = "http://proxy:3128"
				c.ControlPlane.Proxy = "http://proxy:3128"
				c.ControlPlane.ProxyCredentials = "proxy.go"
				c.Instance = "me"
				c.Webhook.MaxConnections = 9
				c.Webhook.Configuration = "watcher"
				c.Outbox.Settle = off
				c.Outbox.MaxKeys = 7
				c.Outbox.ForwardTimeout = 2 * time.Second
				c.Outbox.MaxBytes = 7000
				c.Outbox.MaxBackoff = 4 * time.Second
				c.Outbox.Resend = []time.Duration{}
				c.Outbox.ResendResync = off
				c.Outbox.HeartbeatInterval = off
				c.StopDelay = 3 * time.Second
				c.ShutdownTimeout = time.Minute
				c.ControlPlane.Fallback = contract.V2
				c.ControlPlane.RetryNewest = time.Minute
				c.Canary = agent.Canary{
					Lease: types.NamespacedName{Namespace: "kyma-system", Name: "agent"}, Interval: time.Second,
					Server: "https://api", TokenFile: "memory.go", CAFile: "commands.go",
				}

				c.webhook.host = "127.0.0.1"
				c.metrics.host = "::1"
				c.logLevel = slog.LevelDebug
				c.Webhook.Keys = keys.Paths{Certificate: "nats.go", Key: "table.go"}
				c.Webhook.ClientCAs = "config.go"
				c.Webhook.ClientNames = []string{"kube-apiserver", "front-proxy"}
				c.Webhook.MaxHandshakes = 5
			},
		},
		"what the image for today's fleet sets": {
			env: []string{"MANAGERS=a,*", "METRICS_ALIASES=true", "KCP_CONTRACT=v2", "CONTRACT_FALLBACK=v2"},
			want: func(c *config) {
				c.Managers = []core.Manager{"a"}
				c.OtherManagers = true
				c.MetricAliases = true
				c.Contract = contract.V2
				c.ControlPlane.Fallback = contract.V2
			},
		},
		"informer": {
			env: []string{
				"SOURCE=informer", "WATCHERS=" + watcherText, "EXCLUDED_NAMESPACES=a,b",
				"INFORMER_API_SERVER=https://api", "INFORMER_TOKEN_FILE=memory.go", "INFORMER_CA_CERT=commands.go",
			},
			want: func(c *config) {
				c.source = sourceInformer
				c.informer = watching.Settings{
					Watches: []watch.Watch{{
						Name: types.NamespacedName{Namespace: "default", Name: "demo"}, Manager: "demo",
						Resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
						Selector: watch.Selector{Labels: map[string]string{"a": "b"}},
					}},
					ExcludedNamespaces: []string{"a", "b"},
					Server:             "https://api", TokenFile: "memory.go", CAFile: "commands.go",
				}
			},
		},
		"own webhook configuration": {
			env: []string{
				"WATCHERS=" + watcherText, "WEBHOOK_CONFIGURATION=skr-webhook", "WEBHOOK_ENDPOINT=kyma-system/agent:8443",
				"WEBHOOK_CA_CERT=main.go", "WEBHOOK_DOMAIN=example.com",
			},
			want: func(c *config) {
				c.informer.Watches = watchesOf(t, watcherText)
				c.Webhook.Configuration = "skr-webhook"
				c.Webhook.Own.Service = types.NamespacedName{Namespace: "kyma-system", Name: "agent"}
				c.Webhook.Own.ServicePort = 8443
				c.webhookCA = "main.go"
				c.webhookDomain = "example.com"
			},
		},
		"own webhook configuration by URL": {
			env: []string{"WATCHERS=" + watcherText, "WEBHOOK_CONFIGURATION=a", "WEBHOOK_ENDPOINT=https://agent.example.com"},
			want: func(c *config) {
				c.informer.Watches = watchesOf(t, watcherText)
				c.Webhook.Configuration = "a"
				c.Webhook.Own.URL = "https://agent.example.com"
			},
		},
		"one resend": {
			env:  []string{"RESEND_AFTER=4s"},
			want: func(c *config) { c.Outbox.Resend = []time.Duration{4 * time.Second} },
		},
		"IPv6": {
			env:  []string{"KCP_ADDR=[2001:db8::1]:443"},
			want: func(c *config) { c.to.Address = "[2001:db8::1]:443" },
		},
		"what only former agents know is without effect": {
			env: []string{"TLS_CALLBACK=true", "WEBHOOK_SIDE_CAR=true"},
			args: []string{
				"--development", "-zap-devel=true", "--zap-encoder", "json", "--zap-log-level=debug", "--kubeconfig=/none",
			},
			want: func(*config) {},
		},
		"a wrong port of a variable is that of former agents, the default": {
			env:  []string{"WEBHOOK_PORT=tcp://10.0.0.1:443", "METRICS_PORT=http"},
			want: func(*config) {},
		},
		"same port, other address": {
			env: []string{"METRICS_PORT=8443", "METRICS_BIND=127.0.0.1"},
			want: func(c *config) {
				c.metrics = bindAddress{"127.0.0.1", 8443}
			},
		},
	}

	set := nonEmpty(minimal)
	for _, test := range tests {
		set = append(set, nonEmpty(test.env)...)
	}

	for _, setting := range settings(&config{}) {
		if !slices.ContainsFunc(setting.names(), func(name string) bool { return slices.Contains(set, name) }) {
			t.Errorf("no row sets %s: add the setting to a row, with a value that is not the default", setting.env)
		}
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			env := slices.Concat([]string{"POD_NAME=pod-1", "HOSTNAME=host-1"}, minimal, test.env)
			got := must(readSettings(test.args, lookup(env)))(t)
			want := defaultConfig()
			test.want(&want)
			got.resolution = resolution{}

			if diff := cmp.Diff(want, got, cmp.AllowUnexported(config{}, resolution{}, bindAddress{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// nonEmpty returns the names of the variables that have a value.
func nonEmpty(env []string) (names []string) {
	for _, pair := range env {
		name, value, _ := strings.Cut(pair, "=")
		if value != "" {
			names = append(names, name)
		}
	}
	return names
}

func TestWrongSettings(t *testing.T) {
	t.Parallel()

	var many strings.Builder
	for i := range defaults.MaxManagers {
		fmt.Fprintf(&many, "m%d,", i)
	}

	for pair, want := range map[string]string{
		"METRICS_PORT=8443":               "want two ports",
		"KCP_ADDR=":                       "CONTROL_PLANE_ADDRESS: missing, set it or --control-plane-address to a host:port",
		"CA_CERT=":                        "CA_CERT: missing, set it or --ca-cert to a file",
		"CA_CERT=none.crt":                "CA_CERT: open none.crt: no such file",
		"TLS_KEY=..":                      `TLS_KEY: "..", want a file`,
		"KCP_ADDR=http://kcp:80":          "KCP_ADDR: ",
		"KCP_ADDR=kcp:0":                  "want host:port",
		"KCP_ADDR=kcp:":                   "want host:port",
		"KCP_ADDR=:443":                   "want host:port",
		"KCP_ADDR=kcp:443/v1":             "want host:port",
		"KCP_ADDR=kcp:443?a=b":            "want host:port",
		"KCP_ADDR=[::1":                   "want host:port",
		"KCP_ADDR=user:secret@kcp:443":    `"(with credentials)"`,
		"KCP_CONTRACT=v9":                 "KCP_CONTRACT: ",
		"KCP_PROTOCOL=spdy":               "want http1 or http2",
		"MANAGERS=a,,B":                   `MANAGERS: `,
		"MANAGERS=a,a":                    "is there twice",
		"MANAGERS=" + many.String() + "m": "want at most 100",
		"SETTLE=-1s":                      `SETTLE: "-1s", want a duration`,
		"SETTLE=1":                        `SETTLE: "1", want a duration`,
		"RESEND_AFTER=-1s":                `RESEND_AFTER: "-1s", want a duration`,
		"RESEND_AFTER=5s,3s":              `RESEND_AFTER: "5s,3s", want rising durations`,
		"RESEND_AFTER=0s,3s":              `RESEND_AFTER: "0s,3s", want rising durations`,
		"OUTBOX_MAX_KEYS=0":               "want a number above 0",
		"OUTBOX_MAX_BYTES=0":              "want a number above 0",
		"FORWARD_TIMEOUT=0s":              "want a duration above 0",
		"HEARTBEAT_INTERVAL=x":            "HEARTBEAT_INTERVAL: ",
		"CONTRACT_FALLBACK=v1":            `CONTRACT_FALLBACK: "v1", want v2`,
		"CONTRACT_RETRY=0s":               "want a duration above 0",
		"METRICS_ALIASES=yes":             "want true or false",
		"CANARY_LEASE=agent":              "want <namespace>/<name>",
		"CANARY_INTERVAL=0s":              "want a duration above 0",
		"STOP_DELAY=-1s":                  "STOP_DELAY: ",
		"SHUTDOWN_TIMEOUT=0s":             "SHUTDOWN_TIMEOUT: ",
		"WEBHOOK_BIND=localhost":          "want an IP address",
		"METRICS_BIND=0.0.0.0:1":          "want an IP address",
		"WEBHOOK_CLIENT_NAMES=api":        "want it only with WEBHOOK_CLIENT_CA",
		"WEBHOOK_CLIENT_NAMES=a,,b,a":     `WEBHOOK_CLIENT_NAMES: "", want a name between two commas; "a" is there twice`,
		"WEBHOOK_TLS_CERT=settings.go":    "WEBHOOK_TLS_CERT and WEBHOOK_TLS_KEY",
		"SOURCE=polling":                  `SOURCE: "polling", want admission or informer`,
		"SOURCE=informer":                 "WATCHERS: missing, want it with SOURCE=informer",
		"WATCHERS=" + watcherText:         "WEBHOOK_ENDPOINT: missing, want it with WATCHERS",
		"WEBHOOK_ENDPOINT=a/b":            "WEBHOOK_ENDPOINT: want it only with WATCHERS",
		"WEBHOOK_ENDPOINT=a":              "want <namespace>/<name>[:<port>], or https://",
		"WEBHOOK_ENDPOINT=a/b:x":          "want a port",
		"WEBHOOK_CA_CERT=main.go":         "WEBHOOK_CA_CERT: want it only with WEBHOOK_ENDPOINT",
		"WEBHOOK_DOMAIN=example.com":      "WEBHOOK_DOMAIN: want it only with WEBHOOK_ENDPOINT",
		"WATCHERS=a":                      "WATCHERS: ",
		"WATCHERS=" + strings.ReplaceAll(watcherText, `"manager": "demo"`, `"manager": "A b"`): "manager",
		"LOG_LEVEL=loud": "want debug, info, warn or error",
	} {
		t.Run(pair, func(t *testing.T) {
			t.Parallel()

			_, err := readSettings(nil, lookup(append(minimal, pair)))
			if !errors.Is(err, errSettings) || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one of settings with %s", err, want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error shows a password: %v", err)
			}
		})
	}
}

func TestAllWrongSettingsAreNamedAtOnce(t *testing.T) {
	t.Parallel()

	var stdout, stderr bytes.Buffer
	err := run(t.Context(), []string{"--unknown=1", "--webhook-port=x", "stray", "--also-unknown", "--settle"},
		lookup([]string{
			"KCP_CONTRACT=v9", "LOG_LEVEL=loud", "MANAGERS=B,C", "TLS_KEY=/none", "WEBHOOK_TLS_CERT=/none", "KCP_ADR=kcp",
		}), &stdout, &stderr)
	if got := exitCode(err); got != 2 {
		t.Errorf("exit code %d, want 2", got)
	}

	for _, want := range []string{
		"-unknown", "-also-unknown", "-settle", `"stray"`, "--webhook-port: ", "KCP_CONTRACT: ", "LOG_LEVEL: ", `"B"`, `"C"`,
		"CONTROL_PLANE_ADDRESS: missing", "CA_CERT: missing", "TLS_CERT: missing", "TLS_KEY: open /none", "WEBHOOK_TLS_CERT: open /none",
		"warning: KCP_ADR: no setting has this name, it is without effect, did you mean KCP_ADDR?",
	} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("nothing about %s in:\n%s", want, &stderr)
		}
	}

	if stdout.Len() > 0 {
		t.Errorf("%q on stdout, want nothing", &stdout)
	}
}

func TestHelpAndVersionGoToStdout(t *testing.T) {
	t.Parallel()

	for arg, want := range map[string]string{"--version": "agent ", "--help": "--control-plane-address", "-h": "--control-plane-address"} {
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

func TestUnknownCommand(t *testing.T) {
	t.Parallel()
	for command, hint := range map[string]string{
		"chek": ", did you mean check?", "debog": ", did you mean debug?", "xxdebug": ", did you mean debug?",
		"dobog": "", "serve": "",
	} {
		var stderr bytes.Buffer
		err := run(t.Context(), []string{command, "--help"}, lookup(nil), io.Discard, &stderr)
		want := fmt.Sprintf("wrong settings, agent --help lists all:\n  %q: unknown command%s\n", command, hint)
		if exitCode(err) != exitUsage || stderr.String() != want {
			t.Errorf("exit code %d and %q, want 2 and %q", exitCode(err), &stderr, want)
		}
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestOneMistakeIsReportedOnce(t *testing.T) {
	t.Parallel()
	for pair, others := range map[string][]string{
		"WEBHOOK_TLS_CERT=/none":  {"WEBHOOK_TLS_KEY=" + anyFile},
		"WEBHOOK_CLIENT_CA=/none": {"WEBHOOK_CLIENT_NAMES=a"},
		"KCP_CONTRACT=v9":         {"CONTRACT_FALLBACK=v2"},
		"SETTLE=x":                {"RESEND_AFTER=1s"},
	} {
		_, err := readSettings(nil, lookup(slices.Concat(minimal, others, []string{pair})))
		if err == nil || strings.Count(err.Error(), "\n") != 1 {
			t.Errorf("%s: error %v, want one line for one mistake", pair, err)
		}
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		env, args []string
		want      []string
	}{
		"nothing doubtful": {env: []string{"POD_NAME=a", "PATH=/bin", "GODEBUG=x", "KUBERNETES_PORT=tcp://10.0.0.1:443"}},
		"misspelled": {
			env: []string{"KCP_ADR=a", "MANAGER=b", "SETLE=1s", "log_level=debug"},
			want: []string{
				"KCP_ADR: no setting has this name, it is without effect, did you mean KCP_ADDR?",
				"MANAGER: no setting has this name, it is without effect, did you mean MANAGERS?",
				"SETLE: no setting has this name, it is without effect, did you mean SETTLE?",
				"log_level: no setting has this name, it is without effect, did you mean LOG_LEVEL?",
			},
		},
		"own prefix": {
			env:  []string{"WEBHOOK_SIDE_CAR=true"},
			want: []string{"WEBHOOK_SIDE_CAR: no setting has this name, it is without effect"},
		},
		"empty": {env: []string{"KCP_ADR="}},
		"links to Services": {env: []string{
			"KCP_PORT=tcp://10.0.0.1:443", "KCP_SERVICE_HOST=10.0.0.1", "KCP_SERVICE_PORT=443", "KCP_SERVICE_PORT_HTTPS=443",
			"KCP_PORT_443_TCP=tcp://10.0.0.1:443", "KCP_PORT_443_TCP_ADDR=10.0.0.1", "KCP_PORT_443_TCP_PROTO=tcp",
		}},
		"wrong port": {
			env:  []string{"WEBHOOK_PORT=65536"},
			want: []string{`WEBHOOK_PORT: "65536", want a port from 0 to 65535; the default 8443 is used`},
		},
		"a Service of the name webhook": {
			env: []string{"WEBHOOK_PORT=tcp://10.0.0.1:443"},
			want: []string{`WEBHOOK_PORT: "tcp://10.0.0.1:443", want a port (Kubernetes sets this variable for a Service; ` +
				`enableServiceLinks: false in the pod prevents it); the default 8443 is used`},
		},
		"flags of a former agent": {
			args: []string{"--zap-devel", "--development=true"},
			want: []string{
				"--development: a flag of a former agent, without effect",
				"--zap-devel: a flag of a former agent, without effect",
			},
		},
		"a fallback of the image for an old Deployment": {
			env:  []string{"KCP_CONTRACT=v1", "CONTRACT_FALLBACK=v2"},
			want: []string{"CONTRACT_FALLBACK is without effect, as CONTROL_PLANE_CONTRACT=v1 has none"},
		},
		"any client of a CA": {
			env:  []string{"WEBHOOK_CLIENT_CA=" + anyFile},
			want: []string{"WEBHOOK_CLIENT_CA without WEBHOOK_CLIENT_NAMES: any certificate of these CAs is accepted"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got := must(readSettings(test.args, lookup(append(slices.Clone(minimal), test.env...))))(t).warnings
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestEverySettingIsInHelp(t *testing.T) {
	t.Parallel()

	text := help()
	seen := map[string]bool{}
	for _, s := range settings(new(config)) {
		if !strings.Contains(text, "--"+s.flag()+", "+s.env+" ") || seen[s.env] {
			t.Errorf("%s is not in the help, or twice", s.env)
		}

		seen[s.env] = true
		if s.required && s.fallback != "" {
			t.Errorf("%s is required and has a default", s.env)
		}
		if s.fallback != "" {
			if err := s.set(s.fallback); err != nil {
				t.Errorf("default of %s: %v", s.env, err)
			}
		}
	}

	for line := range strings.Lines(text) {
		if len(line) > helpWidth+1 {
			t.Errorf("line of %d columns, want at most %d: %s", len(line), helpWidth, line)
		}
	}
}

// markdown has one table per group for docs/reference/agent.md.
func markdown() string {
	var out strings.Builder
	for _, g := range groups(new(config)) {
		fmt.Fprintf(&out, "### %s\n\n| variable | value | meaning |\n| --- | --- | --- |\n", g.title)
		for _, s := range g.settings {
			fmt.Fprintf(&out, "| `%s` | %s | %s |\n", s.env, s.valueNote(), s.helpText())
		}

		out.WriteString("\n")
	}

	return out.String()
}

func TestFlagsInDocsExist(t *testing.T) {
	t.Parallel()

	var flags strings.Builder
	_ = webhookconfig.Run([]string{"--help"}, nil, &flags) // flag.ErrHelp
	flags.WriteString(help())

	for _, document := range []string{"reference/agent.md", "guide/installing-agents.md", "operations/runbooks.md", "platforms/informer.md"} {
		text := must(os.ReadFile(testcache.Path("../../docs/" + document)))(t)
		if strings.Contains(string(text), "-f watchers.") && !strings.Contains(string(text), "matchConditions") {
			t.Errorf("%s: the command refuses Watchers with matchConditions, which no sentence says", document)
		}

		commands := regexp.MustCompile("agent( webhook-configuration)?( --[^|`\n]*)").FindAllString(string(text), -1)
		for _, name := range regexp.MustCompile(` -(-[a-z-]+)`).FindAllStringSubmatch(strings.Join(commands, " "), -1) {
			if !regexp.MustCompile(name[1] + "[ ,\n]").MatchString(flags.String()) {
				t.Errorf("%s: the agent has no flag -%s", document, name[1])
			}
		}
	}
}

// Run with -update after a change of a setting.
func TestSettingsInDocs(t *testing.T) {
	t.Parallel()

	const path = "../../docs/reference/agent.md"
	text := string(must(os.ReadFile(testcache.Path(path)))(t))
	place := regexp.MustCompile("(?s)(<!-- settings: begin[^\n]*\n\n).*(<!-- settings: end -->)")
	if !place.MatchString(text) {
		t.Fatalf("%s has no place for the settings", path)
	}

	fresh := place.ReplaceAllString(text, "${1}"+markdown()+"$2")
	if *update {
		noError(t, os.WriteFile(path, []byte(fresh), 0o600))
	} else if diff := cmp.Diff(text, fresh); diff != "" {
		t.Errorf("%s is stale, run go test ./cmd/agent -run TestSettingsInDocs -update (-file +code):\n%s", path, diff)
	}
}

func TestHashIsThatOfTheConfiguration(t *testing.T) {
	t.Parallel()

	hash := func(env ...string) string {
		c := must(readSettings(nil, lookup(append(minimal, env...))))(t)
		return c.settingsHash()
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

// The metrics of kyma-project/runtime-watcher, with all of their series from the start.
func TestMetricAliases(t *testing.T) {
	t.Parallel()

	_, s := startWith(t, http.StatusOK, "KCP_CONTRACT=v2", "METRICS_ALIASES=true", "MANAGERS=gadgets,*")
	for metric, want := range map[string]float64{
		"watcher_admission_request_total": 0, "watcher_admission_request_error_total": 0, "watcher_fips_mode": 0,
		`watcher_failed_kcp_total\{error_reason="failed-request"\}`:              0,
		`watcher_failed_kcp_total\{error_reason="unknown-owner"\}`:               0,
		`watcher_failed_kcp_total\{error_reason="invalid-subresource"\}`:         0,
		`watcher_failed_kcp_total\{error_reason="missing-address-or-contract"\}`: 0,
		`watcher_failed_kcp_total\{error_reason="request-setup"\}`:               0,
		"watcher_request_duration":                                               0,
	} {
		scrape := s.scrape(t)
		if n := count(t, scrape, metric); n != want || !strings.Contains(scrape, strings.ReplaceAll(metric, `\`, "")+" ") {
			t.Errorf("%s is %v at the start, want %v", metric, n, want)
		}
	}

	s.review(t, "demo", false) // The list of managers is open for widgets.

	// A resync for each of both managers, and the event.
	s.awaits(t, map[string]float64{"watcher_admission_request_total": 1, "watcher_kcp_requests_total": 3})
	if status, _ := do(t, s.client, http.MethodPost, "https://"+s.webhook+"/validate/widgets", "{"); status == http.StatusOK {
		t.Error("a broken review was accepted")
	}

	s.get(t, "https://"+s.webhook+"/elsewhere") // It is outside of /validate/.
	s.awaits(t, map[string]float64{
		"watcher_admission_request_total": 2, "watcher_admission_request_error_total": 1,
	})

	scrape := s.scrape(t)
	if mean := count(t, scrape, `watcher_request_duration`); mean < 1e-4 || mean > patience.Seconds() {
		t.Errorf("mean duration %v s, want at least 0.0001 s, which has no exponent", mean)
	}

	s.stop(t)
}

func TestMetricAliasesCountFailures(t *testing.T) {
	t.Parallel()

	_, s := startWith(t, http.StatusServiceUnavailable, "KCP_CONTRACT=v2", "METRICS_ALIASES=true", "SHUTDOWN_TIMEOUT=100ms")
	s.review(t, "demo", false)
	s.until(t, func(scrape string) string {
		sent := count(t, scrape, "watcher_kcp_requests_total")
		failed := count(t, scrape, "watcher_failed_kcp_total")
		if sent == 0 || failed < sent {
			return "want a failure for each request"
		}

		return ""
	})

	s.stop(t)
}

// awaits polls metrics until they have these values, or more after stalls.
func (s *started) awaits(t *testing.T, want map[string]float64) {
	t.Helper()
	s.until(t, func(scrape string) (wrong string) {
		for metric, value := range want {
			if got := count(t, scrape, metric); got < value || got > value+2*s.stalls() { // There are two managers.
				wrong = "wrong: " + metric
			}
		}
		return wrong
	})
}

func TestCheckCommand(t *testing.T) {
	t.Parallel()

	p, kcp := newPlane(t)
	for name, test := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"sound": {[]string{"--managers=widgets"}, 0, []string{"ok    heartbeat", "skip  canary", "0 failed"}},
		"v2":    {[]string{"--kcp-contract=v2"}, 0, []string{"warn  managers", "skip  heartbeat"}},
		"settings": {
			[]string{"--managers=A", "--nonsense", "--development"},
			exitUsage,
			[]string{"FAIL  settings", "-nonsense", "warn  settings", "2 failed"},
		},
		"refused": {[]string{"--managers=widgets", "--kcp-server-name=other"}, exitFailure, []string{"FAIL  TLS", "skip  heartbeat"}},
		"help":    {[]string{"--help"}, 0, []string{"agent check", "--control-plane-address"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var out bytes.Buffer
			err := run(t.Context(), append([]string{"check"}, test.args...), lookup(env(p, kcp)), &out, &bytes.Buffer{})
			if code := exitCode(err); code != test.code {
				t.Errorf("exit code %d (%v), want %d", code, err, test.code)
			}

			for _, want := range test.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in the output:\n%s", want, &out)
				}
			}
		})
	}
}

// A clock that is wrong explains certificates that seem to have expired.
func TestCheckNamesAWrongClock(t *testing.T) {
	t.Parallel()

	p, kcp := newPlane(t)
	for _, test := range []struct {
		ahead time.Duration // of the control plane
		want  string
	}{
		{0, "ok    clock"},
		{time.Hour, "behind the control plane; want less than 1m0s; correct the clock of this node"},
		{-time.Hour, "ahead of the control plane"},
	} {
		kcp.ahead.Store(int64(test.ahead))
		var out bytes.Buffer
		noError(t, run(t.Context(), []string{"check", "--managers=widgets"}, lookup(env(p, kcp)), &out, &bytes.Buffer{}))
		if !strings.Contains(out.String(), test.want) {
			t.Errorf("%v ahead: no %q in the output:\n%s", test.ahead, test.want, &out)
		}
	}
}

// A control plane that never answers must not keep an init container for ever.
func TestCheckIsBounded(t *testing.T) {
	t.Parallel()

	p, kcp := newPlane(t)
	closed := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	kcp.Config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		cancel() // As at the end of its time.
		<-closed
	})

	t.Cleanup(func() { close(closed) }) // Before the server is closed.
	var out bytes.Buffer
	args := []string{"check", "--managers=widgets", "--forward-timeout=1h", "--canary-lease=a/b"}
	if err := run(ctx, args, lookup(env(p, kcp)), &out, &bytes.Buffer{}); exitCode(err) != exitFailure {
		t.Errorf("error %v, want a failure", err)
	}

	for _, want := range []string{"FAIL  heartbeat             no answer", "skip  canary                no time is left"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in the output:\n%s", want, &out)
		}
	}
}

// The sender of the check must be known from its heartbeat.
func TestHeartbeatOfACheckLeaves(t *testing.T) {
	t.Parallel()

	p, kcp := newPlane(t)
	noError(t, run(t.Context(), []string{"check", "--managers=widgets", "--instance=agent-0"}, lookup(env(p, kcp)), &bytes.Buffer{}, &bytes.Buffer{}))
	beat := <-kcp.beats
	if !beat.Leaving || beat.Sequence != 0 || beat.Number != 1 || beat.Instance != "agent-0/check" {
		t.Errorf("heartbeat %+v, want the first and last one of an epoch without events", beat)
	}
}

func TestCheckReportsThatItCannotPrint(t *testing.T) {
	t.Parallel()

	p := newPKI(t)
	err := run(t.Context(), []string{"check"}, lookup(env(p, newControlPlane(t, p, http.StatusOK))), brokenWriter{}, &bytes.Buffer{})
	if err == nil {
		t.Error("no error, want that of the output")
	}
}

func watchesOf(t *testing.T, text string) []watch.Watch {
	t.Helper()

	watches, err := watching.Watches(text)
	if err != nil {
		t.Fatal(err)
	}

	return watches
}

// The mark and the managers of an own webhook configuration follow from other settings.
func TestOwnWebhookConfiguration(t *testing.T) {
	c, err := readSettings(nil, lookup(append(minimal, "WATCHERS="+watcherText, "WEBHOOK_CONFIGURATION=a", "WEBHOOK_ENDPOINT=b/c",
		"OWNER_ANNOTATION=fleet.example.com/owned-by", "EXCLUDED_NAMESPACES=d", "WEBHOOK_CA_CERT=main.go", "WEBHOOK_DOMAIN=e.io")))
	if err != nil {
		t.Fatal(err)
	}

	have := c.agentOptions(slog.New(slog.DiscardHandler))
	want := agent.OwnConfiguration{
		Watches: watchesOf(t, watcherText), Service: types.NamespacedName{Namespace: "b", Name: "c"},
		CA: "main.go", WebhookDomain: "e.io", ExcludedNamespaces: []string{"d"}, Mark: "fleet.example.com/installed-by",
	}
	if diff := cmp.Diff(want, have.Webhook.Own); diff != "" {
		t.Errorf("own configuration (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]core.Manager{"demo"}, have.Managers); diff != "" {
		t.Errorf("managers (-want +got):\n%s", diff)
	}
}
