package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()

		check(tb, err)
		return value
	}
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func jsonLog(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
}

// newVolume has a certificate with the options, its key and its CA.
func newVolume(tb testing.TB, opts testpki.Options) *testpki.Volume {
	tb.Helper()

	ca := must(testpki.NewCA("watcher-ca", testpki.Options{}))(tb)
	volume := testpki.NewVolume(tb.TempDir())
	check(tb, volume.Write(testpki.Files(must(ca.Server("runtime-1", opts))(tb), ca)))

	return volume
}

func writeFile(tb testing.TB, path, text string) {
	tb.Helper()
	check(tb, os.WriteFile(path, []byte(text), 0o600))
}

func pathsOf(volume *testpki.Volume) keys.Paths {
	ca, cert, key := volume.Paths()
	return keys.Paths{CA: ca, Certificate: cert, Key: key}
}

// newBuilder returns a builder with metrics and keys.
func newBuilder(tb testing.TB, log *slog.Logger, to Connection, opts Options) *builder {
	tb.Helper()

	opts.Logger = log
	opts = opts.withDefaults()
	b := &builder{ctx: tb.Context(), to: to, opts: opts, log: opts.Logger}
	check(tb, b.addManagers())
	check(tb, b.addMetrics())
	check(tb, b.addKeys())

	return b
}

// The API server calls a webhook by its serving certificate only. Client and serving certificate
// expire at different times here, so a check of the wrong one shows.
func TestAnExpiredServingCertificateIsNotReady(t *testing.T) {
	t.Parallel()

	const day = 24 * time.Hour
	expiring := func(after time.Duration) keys.Paths {
		return pathsOf(newVolume(t, testpki.Options{NotAfter: time.Now().Add(after)}))
	}

	for _, tt := range []struct {
		name            string
		client, serving keys.Paths
		ready           map[time.Duration]bool
	}{
		{
			"one certificate for both",
			expiring(10 * day),
			keys.Paths{},
			map[time.Duration]bool{0: true, 9 * day: true, 11 * day: false},
		},
		{
			"the serving certificate expires first",
			expiring(20 * day), expiring(10 * day),
			map[time.Duration]bool{0: true, 9 * day: true, 11 * day: false, 21 * day: false},
		},
		{
			"the client certificate expires first",
			expiring(10 * day), expiring(20 * day),
			map[time.Duration]bool{0: true, 11 * day: true, 21 * day: false},
		},
	} {
		b := newBuilder(t, nil, Connection{Keys: tt.client}, Options{Webhook: Webhook{Keys: tt.serving}})
		r := &readiness{keys: b.keys, proof: &proof{}, source: func() error { return nil }}

		if r.healthAt(time.Now()).Ready {
			t.Errorf("%s: ready before it serves", tt.name)
		}

		r.serving.Store(true)
		for after, want := range tt.ready {
			if got := r.healthAt(time.Now().Add(after)).Ready; got != want {
				t.Errorf("%s: ready is %t after %v, want %t", tt.name, got, after, want)
			}
		}
	}
}

// An agent writes its webhooks once a probe was answered that it is ready. A probe that is refused
// does not count, because the API server would call an agent that is no endpoint yet.
func TestOnlyAProbeThatSucceedsCounts(t *testing.T) {
	t.Parallel()

	r := &readiness{proof: &proof{}, source: func() error { return nil }}
	probe := func(want int, counts bool) {
		t.Helper()

		answer := httptest.NewRecorder()
		r.ServeHTTP(answer, nil)
		if answer.Code != want || r.probed.Load() != counts {
			t.Errorf("status %d, probed %t, want %d and %t", answer.Code, r.probed.Load(), want, counts)
		}
	}

	probe(http.StatusServiceUnavailable, false)
	r.serving.Store(true)
	probe(http.StatusOK, true)
	r.serving.Store(false)
	probe(http.StatusServiceUnavailable, true)
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()

	volume := newVolume(t, testpki.Options{})
	b := newBuilder(t, nil, Connection{Address: "localhost", Keys: pathsOf(volume)}, Options{
		Instance: "pod-1", Version: "v1.2.3", ConfigHash: "abcd",
		ControlPlane: ControlPlane{Fallback: "v1"},
	})
	if err := b.addTransport(); err != nil || len(b.closers) != 2 {
		t.Errorf("%d forwarders are closed at the end, error %v, want 2", len(b.closers), err)
	}

	proof := &proof{last: map[core.Manager]time.Time{}}
	p := &heartbeats{opts: b.opts, keys: b.keys, proof: proof, canary: func() core.CanaryState { return core.CanaryOff }}
	p.problem = func(core.Manager) string { return "managers: broken" }
	p.canaryProblem = func() string { return "403 Forbidden" }
	p.webhooks = func() string { return "one is missing" }
	reviewed := time.Now()
	proof.noteProof("widgets", reviewed)
	proof.failures.Add(3)
	material := b.keys.client.Status().Material
	want := core.Heartbeat{
		Instance: "pod-1", Version: "v1.2.3", ConfigHash: "abcd", CertificateFingerprint: material.Fingerprint,
		CertificateExpiry: material.NotAfter, CAFingerprints: material.RootFingerprints,
		LastReview: reviewed, WebhookFailures: 3, ConfigError: "managers: broken",
		CanaryError: "403 Forbidden", WebhookError: "one is missing",
	}
	if diff := cmp.Diff(want, p.makeHeartbeat("widgets")); diff != "" || len(want.CAFingerprints) != 1 {
		t.Errorf("heartbeat (-want +got):\n%s", diff)
	}

	if got := p.makeHeartbeat("gadgets").LastReview; !got.IsZero() {
		t.Errorf("last review of another manager is %v, want none", got)
	}

	check(t, os.Remove(volume.Path("tls.key")))
	if err := b.keys.client.material.(*keys.Files).Reload(); err == nil {
		t.Fatal("want an error without a key")
	}
	if got := p.makeHeartbeat("widgets").KeyMaterialError; !strings.Contains(got, "tls.key") {
		t.Errorf("key material error %q, want the file", got)
	}
}

func TestNewNamesWrongOptions(t *testing.T) {
	t.Parallel()

	source := func(context.Context, *Inbox) error { return nil }
	transport := core.ForwarderFunc(func(context.Context, core.Manager, core.Batch) error { return nil })
	bundle, _, _ := newVolume(t, testpki.Options{}).Paths()
	to := Connection{Address: "kcp.example.com", Keys: pathsOf(newVolume(t, testpki.Options{}))}
	own := Parts{Source: source, Transport: transport}
	withKeys := func(paths keys.Paths) Connection { return Connection{Address: to.Address, Keys: paths} }

	for want, test := range map[string]struct {
		to    Connection
		parts Parts
		opts  Options
	}{
		"Contract":                    {to, own, Options{Contract: "v9"}},
		"Connection.Keys":             {Connection{Address: to.Address}, Parts{Source: source}, Options{}},
		"Connection.Address":          {Connection{Keys: to.Keys}, Parts{Source: source}, Options{}},
		"ClientNames":                 {to, own, Options{Webhook: Webhook{ClientNames: []string{"a"}}}},
		"Canary":                      {to, own, Options{Canary: Canary{Lease: types.NamespacedName{Name: "x"}}}},
		"managers: open":              {to, own, Options{ManagersFile: "does-not-exist"}},
		"Managers: manager":           {to, own, Options{Managers: []core.Manager{"Kyma"}}},
		"Managers: duplicate manager": {to, own, Options{Managers: []core.Manager{"kyma", "kyma"}}},
		"Managers: 101":               {to, own, Options{Managers: make([]core.Manager, 101)}},
		"metrics: cannot":             {to, own, Options{MetricsAddress: "192.0.2.1:1"}},
		"no such file":                {withKeys(keys.Paths{CA: "x", Certificate: "y", Key: "z"}), Parts{}, Options{}},
		"StopDelay":                   {to, own, Options{StopDelay: -1}},
		"ShutdownTimeout":             {to, own, Options{ShutdownTimeout: -1}},
		"a certificate":               {withKeys(keys.Paths{CA: bundle}), Parts{Transport: transport}, Options{}},
		"webhook: cannot":             {to, Parts{}, Options{Webhook: Webhook{Address: "192.0.2.1:1"}}},
		"httpmtls: address":           {Connection{Address: "http://plain", Keys: to.Keys}, Parts{}, Options{}},
	} {
		if test.opts.MetricsAddress == "" {
			test.opts.MetricsAddress = "127.0.0.1:0"
		}
		if _, err := New(t.Context(), test.to, test.parts, test.opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

// Strangers invent managers. The real one proves itself again with its next review.
func TestProofIsBounded(t *testing.T) {
	t.Parallel()

	p := &proof{last: map[core.Manager]time.Time{}}
	now := time.Now()
	for i := range 10 * defaults.MaxManagers {
		p.noteProof(core.Manager("guess-"+string(rune('a'+i%26))+strings.Repeat("x", i/26)), now.Add(time.Duration(i)))
	}

	p.noteProof("widgets", now.Add(time.Hour))
	if n := len(p.last); n != defaults.MaxManagers || p.lastProof("widgets").IsZero() {
		t.Errorf("%d managers, and widgets at %v; want %d with it", n, p.lastProof("widgets"), defaults.MaxManagers)
	}
}

func TestEpochs(t *testing.T) {
	t.Parallel()

	one := newEpoch()
	other := newEpoch()
	if len(one) != 32 || one == other {
		t.Errorf("epochs %s and %s, want two of 32 digits", one, other)
	}
}

func TestWithoutDebug(t *testing.T) {
	t.Parallel()

	var out strings.Builder
	log := withoutDebug(jsonLog(&out, slog.LevelDebug)).With(slog.Int("a", 1)).WithGroup("g")
	log.Debug("unwanted")
	log.Info("wanted")

	if got := out.String(); strings.Contains(got, "unwanted") || !strings.Contains(got, `"wanted"`) {
		t.Errorf("log %s, want the info line only", got)
	}

	out.Reset()
	withoutDebug(jsonLog(&out, slog.LevelError)).Info("unwanted")
	if out.Len() > 0 {
		t.Errorf("log %s, want the level of the handler below", &out)
	}
}

// Heartbeats to a manager name why the source does not see its changes, and those to others do not.
// A source that is not ready makes the agent not ready.
func TestProblemOfTheSource(t *testing.T) {
	t.Parallel()

	problem := map[core.Manager]string{"widgets": "watch widgets: forbidden"}
	problemOf := func(manager core.Manager) string { return problem[manager] }
	beats := make(chan [2]string, 10)
	agent := must(New(t.Context(), Connection{}, Parts{
		Source: func(ctx context.Context, _ *Inbox) error { <-ctx.Done(); return nil },
		Transport: core.ForwarderFunc(func(_ context.Context, manager core.Manager, batch core.Batch) error {
			if batch.Heartbeat != nil && !batch.Heartbeat.Leaving {
				beats <- [2]string{string(manager), batch.Heartbeat.ConfigError}
			}
			return nil
		}),
		Problem: problemOf,
	}, Options{Managers: []core.Manager{"widgets", "gadgets"}, MetricsAddress: "127.0.0.1:0"}))(t)

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- agent.Start(ctx) }()
	got := map[string]string{}

	for len(got) < 2 {
		beat := <-beats
		got[beat[0]] = beat[1]
	}

	stop()
	if err := <-ended; err != nil || got["widgets"] != problem["widgets"] || got["gadgets"] != "" {
		t.Errorf("%v, problems %q in heartbeats, want that of widgets", err, got)
	}

	notReady := errors.New("watch widgets: forbidden")
	r := &readiness{proof: &proof{}, source: func() error { return notReady }}
	r.serving.Store(true)
	if h := r.healthAt(time.Now()); h.Ready || h.Source != notReady.Error() {
		t.Errorf("health %+v, want that it is not ready because of its source", h)
	}

	notReady = nil
	if h := r.healthAt(time.Now()); !h.Ready {
		t.Errorf("health %+v, want that it is ready", h)
	}
}

// diary records the order of calls.
type diary struct {
	mu      sync.Mutex
	entries []string
}

func (d *diary) note(entry string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entries = append(d.entries, entry)
}

func (d *diary) component(name string, err error) component {
	return component{name, func(ctx context.Context) error {
		<-ctx.Done()
		d.note(name)
		return err
	}}
}

func TestComponentsStopOneAfterTheOther(t *testing.T) {
	t.Parallel()

	var d diary
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	broken := errors.New("broken")
	err := runAll(ctx, []component{d.component("first", nil), d.component("second", broken), d.component("third", nil)})
	if !errors.Is(err, broken) || err.Error() != "second: broken" {
		t.Errorf("error %v, want that of the second", err)
	}

	if diff := cmp.Diff([]string{"third", "second", "first"}, d.entries); diff != "" {
		t.Errorf("order of stop (-want +got):\n%s", diff)
	}
}

func TestAComponentThatEndsEndsAll(t *testing.T) {
	t.Parallel()

	broken := errors.New("broken")
	for name, test := range map[string]struct{ have, want error }{
		"failed":  {broken, broken},
		"in vain": {nil, errEnded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var d diary
			err := runAll(t.Context(), []component{
				d.component("first", nil),
				{"culprit", func(context.Context) error { return test.have }},
				d.component("last", nil),
			})
			if !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
			if diff := cmp.Diff([]string{"last", "first"}, d.entries); diff != "" {
				t.Errorf("order of stop (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCloser(t *testing.T) {
	t.Parallel()

	broken := errors.New("broken")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := closer("x", func() error { return broken }).start(ctx); !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
}
