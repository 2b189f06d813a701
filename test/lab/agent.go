package lab

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

// patience bounds each wait of the laboratory, also on a busy machine.
const patience = 3 * time.Minute

// Build compiles a command of the repository once per test process, and returns the path of the
// binary.
func Build(t testing.TB, command string) string {
	t.Helper()

	test.NoticeSources(t)

	stored, _ := builds.LoadOrStore(command, sync.OnceValues(func() (string, error) {
		ctx, scratch := context.Background(), os.TempDir() // For all tests.
		if demo := demoOf(t); demo != nil {
			ctx = demo.ctx
			scratch = demo.Dir
		}
		return machine.Build(ctx, command, "test", scratch)
	}))

	build, _ := stored.(func() (string, error)) // Nothing else is stored.
	path, err := build()
	NoError(t, err)

	return path
}

var builds sync.Map // One binary serves all tests of a process.

// Agent is a real agent process.
type Agent struct {
	*Process

	WebhookPort, MetricsPort int
	Volume                   *testpki.Volume
}

// AgentOptions are the choices of [StartAgent].
type AgentOptions struct {
	// Env is added to the environment that today's deployments set.
	Env map[string]string
	// Name is the name of the log. Default: "agent".
	Name string
	// MetricsPort is a fixed port. Default: a free port.
	MetricsPort int
}

// StartAgent runs the agent with the key material of volume and returns when it is ready. The test
// ends it.
func StartAgent(t testing.TB, volume *testpki.Volume, controlPlane string, opts AgentOptions) *Agent {
	t.Helper()

	webhook := FreePort(t)
	metrics := opts.MetricsPort
	if metrics == 0 {
		metrics = FreePort(t)
	}

	env := VolumeEnv(volume)
	env["WEBHOOK_PORT"], env["METRICS_PORT"], env["CONTROL_PLANE_ADDRESS"] = strconv.Itoa(webhook), strconv.Itoa(metrics), controlPlane
	env["RESEND_AFTER"] = "0s" // Tests count events: nothing is sent twice unless a test asks for it.
	maps.Copy(env, opts.Env)
	a := &Agent{
		Process:     NewProcess(t, cmp.Or(opts.Name, "agent"), Build(t, "cmd/agent"), Environ(env)),
		WebhookPort: webhook, MetricsPort: metrics, Volume: volume,
	}
	a.Restart()
	a.keepsSecrets(t, opts.Env["CANARY_TOKEN_FILE"])

	return a
}

// Restart starts the process again, after Kill or Stop, and returns when it is ready.
func (a *Agent) Restart() {
	a.t.Helper()
	a.Launch()
	a.AwaitReady()
}

// AwaitReady returns when the agent is ready.
func (a *Agent) AwaitReady() {
	a.t.Helper()
	Eventually(a.t, patience, "the agent is ready", func() bool {
		if !a.Running() {
			a.t.Fatalf("the agent ended: %s\n%s", a.State(), a.Log())
		}

		_, err := a.get("/readyz")
		return err == nil
	})
}

// Metric returns the sum of a metric over all series that have every given label, such as
// `manager="kyma"`.
func (a *Agent) Metric(name string, labels ...string) float64 {
	a.t.Helper()
	return Sum(a.Scrape(), name, labels...)
}

// Scrape returns the agent's metrics.
func (a *Agent) Scrape() []byte {
	a.t.Helper()

	text, err := a.get("/metrics")
	NoError(a.t, err)
	return text
}

// CheckAccounts waits until no event is pending, and checks that each accepted event has one fate. It returns the
// number of events for each fate.
func (a *Agent) CheckAccounts() map[string]float64 {
	a.t.Helper()

	const prefix = "runtime_watcher_agent_events_"
	a.AwaitDelivered()
	text := a.Scrape()
	fates := map[string]float64{}
	sum := 0.0

	for _, fate := range []string{"delivered_total", "coalesced_total", "dropped_total", "pending"} {
		fates[fate] = Sum(text, prefix+fate)
		sum += fates[fate]
	}

	accepted := Sum(text, prefix+"accepted_total")
	a.t.Logf("%v events accepted, %v", accepted, fates)
	if accepted == 0 || accepted != sum {
		a.t.Errorf("%v events accepted, and the sum of the fates is %v", accepted, sum)
	}

	return fates
}

// AwaitDelivered returns when no event is pending.
func (a *Agent) AwaitDelivered() {
	a.t.Helper()
	Eventually(a.t, Patience, "nothing is pending", func() bool { return a.Metric("runtime_watcher_agent_events_pending") == 0 })
}

// Sum adds the values of a metric in a text of the exposition format, over all series that have
// every given label.
func Sum(text []byte, name string, labels ...string) (sum float64) {
	for line := range bytes.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		base, _, _ := strings.Cut(series, "{")
		if base != name || slices.ContainsFunc(labels, func(label string) bool { return !strings.Contains(series, label) }) {
			continue
		}
		if n, err := strconv.ParseFloat(value, 64); err == nil {
			sum += n
		}
	}
	return sum
}

func (a *Agent) get(path string) ([]byte, error) {
	return Get(a.t.Context(), "http://"+Address(a.MetricsPort)+path)
}

// Get returns the body of an answer with status 200.
func Get(ctx context.Context, url string) ([]byte, error) {
	return GetWith(ctx, new(http.Client), url)
}

// GetWith is [Get] with a client.
func GetWith(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}

	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close() // The body is read.

	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", url, answer.Status, body)
	}

	return body, err
}

// Eventually waits until condition holds, and ends the test if this takes too long. It checks the
// condition first after 10 ms, and then at least five times a second.
func Eventually(t testing.TB, timeout time.Duration, what string, condition func() bool) {
	t.Helper()

	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()

	if machine.Poll(ctx, func() bool {
		if demo := demoOf(t); demo != nil {
			demo.proceed()
		}
		return condition()
	}) != nil {
		t.Fatalf("after %v still not true: %s", timeout, what)
	}
}

// Check runs "agent check", and returns its output and exit code. It must end.
func Check(t testing.TB, env map[string]string) (string, int) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	cmd := exec.CommandContext(ctx, Build(t, "cmd/agent"), "check")
	cmd.Env = Environ(env)
	out, err := cmd.Output()

	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}

	return string(out), cmd.ProcessState.ExitCode()
}

// Environ returns the variables in the form of [os.Environ].
func Environ(env map[string]string) (pairs []string) {
	for name, value := range env {
		pairs = append(pairs, name+"="+value)
	}
	return pairs
}

// VolumeEnv returns the settings of an agent with the key material of a volume.
func VolumeEnv(volume *testpki.Volume) map[string]string {
	ca, cert, key := volume.Paths()
	return map[string]string{"CA_CERT": ca, "TLS_CERT": cert, "TLS_KEY": key}
}

// Telling returns the first line of a check that fails, or the line of the heartbeat if none fails.
func Telling(out string, code int) string {
	prefix := "FAIL"
	if code == 0 {
		prefix = "ok    heartbeat"
	}

	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, prefix) {
			return line
		}
	}
	return ""
}

// KeepsSecrets fails the test if the log of a process contains key material or tokens: armour,
// lines of Base64, bytes in hexadecimal digits. A log may contain fingerprints, because they are
// hashes.
func KeepsSecrets(t testing.TB, log string, secrets ...[]byte) {
	t.Helper()

	if log == "" {
		t.Error("the log is empty: this check cannot fail")
	}
	if strings.Contains(log, "-----BEGIN ") {
		t.Error("PEM in the log")
	}

	lower := strings.ToLower(log)
	for _, secret := range secrets {
		if tellsText(log, secret) {
			t.Error("a part of a secret is in the log, in Base64 or as it is")
		}

		for block, rest := pem.Decode(secret); block != nil; block, rest = pem.Decode(rest) {
			if tellsBytes(lower, block.Bytes) {
				t.Errorf("a part of a %s is in the log in hexadecimal digits", block.Type)
			}
		}
	}
}

// tellsText looks for the beginning of each line of a secret that is long enough to be one.
func tellsText(log string, secret []byte) bool {
	const enough = 20
	for line := range strings.Lines(string(secret)) {
		line = strings.TrimSpace(line)
		if len(line) > enough && !strings.HasPrefix(line, "-") && strings.Contains(log, line[:enough]) {
			return true
		}
	}
	return false
}

func tellsBytes(log string, secret []byte) bool {
	const window = 16
	for i := 0; i+window <= len(secret); i += window {
		if strings.Contains(log, hex.EncodeToString(secret[i:i+window])) {
			return true
		}
	}
	return false
}

// Secrets returns the current content of a volume. A file may be missing or broken, because a test
// may have changed it.
func Secrets(volume *testpki.Volume) (secrets [][]byte) {
	for _, name := range []string{"ca.crt", "tls.crt", "tls.key"} {
		if text, err := os.ReadFile(volume.Path(name)); err == nil {
			secrets = append(secrets, text)
		}
	}
	return secrets
}

// keepsSecrets searches the agent's log when the test ends for its token, and for the content of
// its volume at that time and at its start.
func (a *Agent) keepsSecrets(t testing.TB, tokenFile string) {
	t.Helper()

	secrets := Secrets(a.Volume)
	if token, err := os.ReadFile(tokenFile); err == nil {
		// The beginning of a token is its header, which many have in common: the signature is the
		// secret.
		parts := strings.Split(string(token), ".")
		secrets = append(secrets, []byte(parts[len(parts)-1]))
	}

	t.Cleanup(func() { KeepsSecrets(t, a.FullLog(), append(secrets, Secrets(a.Volume)...)...) })
}
