package watchermetrics_test

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

var update = flag.Bool("update", false, "write the golden files anew")

var errBroken = errors.New("broken")

// refusal is an error that names its cause.
type refusal string

func (r refusal) Error() string  { return "refused: " + string(r) }
func (r refusal) Reason() string { return string(r) }

// registered makes metrics in a registry of their own.
func registered[T any](
	t *testing.T, construct func(prom.Registerer, watchermetrics.Options) (T, error), opts watchermetrics.Options,
) (T, *prom.Registry) {
	t.Helper()
	reg := prom.NewPedanticRegistry()
	return must(construct(reg, opts))(t), reg
}

func newAgent(t *testing.T, opts watchermetrics.Options) (*watchermetrics.Agent, *prom.Registry) {
	t.Helper()
	return registered(t, watchermetrics.NewAgent, opts)
}

// useAgent touches every metric of an agent.
func useAgent(t *testing.T, agent *watchermetrics.Agent) {
	t.Helper()

	box := newOutbox(t, agent, discard, outbox.Options{MaxKeys: 2})
	for _, object := range []string{"a", "a", "b", "c"} {
		box.Accept("kyma", core.WatchEvent{Watched: types.NamespacedName{Name: object}})
	}

	agent.InFlight(+1)
	agent.Reviewed(hook.Review{Manager: "kyma", Decision: "accepted", Took: 40 * time.Microsecond})
	agent.Reviewed(hook.Review{Manager: "kyma", Decision: "unchanged", Took: 300 * time.Microsecond})
	agent.Refused(hook.Refusal{
		Status: http.StatusUnsupportedMediaType, Reason: "media_type", Took: 20 * time.Microsecond,
	})
	agent.Attempted(hook.Attempt{Manager: "kyma", Events: 3, Took: 7 * time.Millisecond})
	agent.Attempted(hook.Attempt{Manager: "kyma", Events: 3, Took: 2 * time.Second, Err: refusal("unavailable")})
	agent.Attempted(hook.Attempt{
		Manager: "kyma", Events: 3, Took: 8 * time.Millisecond, Err: core.EventErrors{1: refusal("malformed")},
	})
	agent.OwnerProblem(hook.OwnerProblem{Manager: "kyma", Problem: "malformed"})
	agent.Panicked(hook.Panic{Place: "filter"})
	agent.Connected(hook.Connection{})
	agent.Connected(hook.Connection{Err: errBroken})
	agent.Retried(hook.Retry{Status: http.StatusBadGateway})
	agent.Retried(hook.Retry{})
	agent.HandshakeFailed(hook.HandshakeFailure{Cause: "bad_certificate"})
	agent.ConnectionDropped(hook.ConnectionDrop{Server: "webhook", Reason: "displaced"})
	agent.Stalled(hook.Stall{})
	agent.ContractUnknown(hook.UnknownContract{Manager: "kyma"})
	agent.ContractInUse(hook.ContractInUse{Manager: "kyma", Contract: "v2"})
	agent.CanaryProbed(hook.CanaryProbe{State: core.CanaryLost, Took: 3 * time.Second})
	agent.CanaryProbed(hook.CanaryProbe{State: core.CanaryAlive, Took: 4 * time.Millisecond})
	agent.WebhooksChecked(hook.WebhookCheck{Result: "same"})
	agent.WebhooksChecked(hook.WebhookCheck{Result: "changed"})
	agent.KeyMaterial("server").Expires(keys.Generation{
		NotBefore: time.Unix(1_799_000_000, 0), NotAfter: time.Unix(1_800_000_000, 0),
	})
	agent.KeyMaterial("client").Reloaded(keys.Generation{
		NotBefore: time.Unix(1_899_000_000, 0), NotAfter: time.Unix(1_900_000_000, 0),
	})
	agent.KeyMaterial("client").Refused(keys.Refusal{Problem: "mismatch"})
	agent.KeyMaterial("client").Refused(keys.Refusal{Problem: "mismatch"})
}

// useListener touches every metric of a listener.
func useListener(listener *watchermetrics.Listener) {
	listener.Hooks.InFlight(+1)
	listener.Hooks.InFlight(+1)
	listener.Hooks.InFlight(-1)
	listener.Hooks.Answered(hook.Answer{
		Contract: "v2", Manager: "kyma", Status: http.StatusOK, Took: 60 * time.Microsecond,
	})
	listener.Hooks.Answered(hook.Answer{
		Contract: "v2", Manager: "kyma", Status: http.StatusServiceUnavailable, Reason: "busy", Took: 3 * time.Millisecond,
	})
	listener.Hooks.Answered(hook.Answer{
		Contract: "v1", Status: http.StatusNotFound, Reason: "unknown_manager", Took: 30 * time.Microsecond,
	})
	listener.Hooks.HandshakeFailed(hook.HandshakeFailure{Cause: "untrusted"})
	listener.Hooks.ConnectionDropped(hook.ConnectionDrop{Reason: "no_slot"})
	listener.KeyMaterial("server").Reloaded(keys.Generation{
		NotBefore: time.Unix(1_899_000_000, 0), NotAfter: time.Unix(1_900_000_000, 0),
	})
	listener.KeyMaterial("server").Refused(keys.Refusal{Problem: "expired"})
	listener.KeyMaterial("ca").Expires(keys.Generation{NotAfter: time.Unix(2_000_000_000, 0)})
}

// The names, the help and the labels of all metrics equal the golden files.
func TestExposition(t *testing.T) {
	for name, exposed := range map[string]func(*testing.T) *prom.Registry{
		"agent.prom": func(t *testing.T) *prom.Registry {
			t.Helper()

			agent, reg := newAgent(t, watchermetrics.Options{Managers: []core.Manager{"lifecycle"}})
			useAgent(t, agent)
			return reg
		},
		"listener.prom": func(t *testing.T) *prom.Registry {
			t.Helper()

			listener, reg := registered(t, watchermetrics.NewListener, watchermetrics.Options{})
			useListener(listener)
			return reg
		},
	} {
		t.Run(name, func(t *testing.T) {
			// The clock of a bubble makes times the same at each run.
			synctest.Test(t, func(t *testing.T) { compareGolden(t, name, scrape(t, exposed(t))) })
		})
	}
}

func compareGolden(t *testing.T, name, got string) {
	t.Helper()

	golden := filepath.Join("testdata", name)
	if *update {
		check(t, os.WriteFile(golden, []byte(got), 0o600))
	}

	want := must(os.ReadFile(golden))(t)
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("exposition differs (-want +got), run with -update to accept:\n%s", diff)
	}
}

// wantLines wants these parts in a scrape.
func wantLines(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("no %s in\n%s", part, text)
		}
	}
}

// scrape returns what a Prometheus server would get.
func scrape(t *testing.T, reg *prom.Registry) string {
	t.Helper()

	response := httptest.NewRecorder()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody)
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(response, request)

	if response.Code != http.StatusOK {
		t.Fatalf("scrape answered %d: %s", response.Code, response.Body)
	}

	return response.Body.String()
}

// register has the constructors of all metrics.
func register(t *testing.T) map[string]func(prom.Registerer, watchermetrics.Options) error {
	t.Helper()

	watched := newFleet(t, fleet.Options{})
	return map[string]func(prom.Registerer, watchermetrics.Options) error{
		"agent": func(reg prom.Registerer, opts watchermetrics.Options) error {
			_, err := watchermetrics.NewAgent(reg, opts)
			return err
		},
		"listener": func(reg prom.Registerer, opts watchermetrics.Options) error {
			_, err := watchermetrics.NewListener(reg, opts)
			return err
		},
		"consumer": func(reg prom.Registerer, opts watchermetrics.Options) error {
			_, err := watchermetrics.NewConsumer(reg, opts)
			return err
		},
		"revocations": func(reg prom.Registerer, opts watchermetrics.Options) error {
			_, err := watchermetrics.NewRevocations(reg, opts)
			return err
		},
		"fleet": func(reg prom.Registerer, opts watchermetrics.Options) error {
			return watchermetrics.RegisterFleet(reg, watched, opts)
		},
		"installations": func(reg prom.Registerer, opts watchermetrics.Options) error {
			return watchermetrics.RegisterInstallations(reg, installed, opts)
		},
	}
}

// An invalid option is an error, which names the option.
func TestConstructorsRefuse(t *testing.T) {
	cases := map[string]struct {
		reg  prom.Registerer
		opts watchermetrics.Options
		want string
	}{
		"no registerer":  {want: "the registerer is nil"},
		"negative limit": {prom.NewRegistry(), watchermetrics.Options{MaxManagers: -1}, "want at least 1"},
		"negative bound": {prom.NewRegistry(), watchermetrics.Options{PerRuntime: -1}, "PerRuntime is -1"},
		"too many managers": {
			prom.NewRegistry(), watchermetrics.Options{MaxManagers: 1, Managers: []core.Manager{"a", "b"}}, "2 Managers",
		},
		"invalid manager": {prom.NewRegistry(), watchermetrics.Options{Managers: []core.Manager{"A/b"}}, `"A/b"`},
		"manager twice":   {prom.NewRegistry(), watchermetrics.Options{Managers: []core.Manager{"a", "a"}}, "named twice"},
	}
	for component, construct := range register(t) {
		for name, c := range cases {
			err := construct(c.reg, c.opts)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %s: got %v, want an error with %q", component, name, err, c.want)
			}
		}
	}

	if watchermetrics.RegisterFleet(prom.NewRegistry(), nil, watchermetrics.Options{}) == nil ||
		watchermetrics.RegisterInstallations(prom.NewRegistry(), nil, watchermetrics.Options{}) == nil {
		t.Error("nothing to read is accepted")
	}
}

// All metrics fit one registry. A second registration fails, and leaves the first one.
func TestRegisteringTwiceFailsAndLeavesTheFirst(t *testing.T) {
	agent, reg := newAgent(t, watchermetrics.Options{})
	for name, construct := range register(t) {
		if err := construct(reg, watchermetrics.Options{}); name != "agent" && err != nil {
			t.Errorf("%s does not fit the registry: %v", name, err)
		}

		var duplicate prom.AlreadyRegisteredError
		if err := construct(reg, watchermetrics.Options{}); !errors.As(err, &duplicate) {
			t.Errorf("second %s: got %v, want AlreadyRegisteredError", name, err)
		}
	}

	agent.InFlight(+1)
	wantLines(t, scrape(t, reg), "runtime_watcher_agent_admission_in_flight 1\n")
}

func TestRegistrationIsAllOrNothing(t *testing.T) {
	reg := prom.NewPedanticRegistry()
	reg.MustRegister(prom.NewGauge(prom.GaugeOpts{Name: "runtime_watcher_agent_admission_in_flight", Help: "Taken."}))
	if _, err := watchermetrics.NewAgent(reg, watchermetrics.Options{}); err == nil {
		t.Fatal("got no error for a name that is taken")
	}
	if count, err := testutil.GatherAndCount(reg); err != nil || count != 1 {
		t.Errorf("got %d series and %v, want the one that was there", count, err)
	}
}

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

// A list that was never read, or cannot be read any more, is broken. The entries of the last good
// list stay in use.
func TestABrokenListOfRevokedSendersShows(t *testing.T) {
	changed, reg := registered(t, watchermetrics.NewRevocations, watchermetrics.Options{})
	want := func(entries, broken int) {
		t.Helper()
		wantLines(t, scrape(t, reg), fmt.Sprintf("\nruntime_watcher_revocations_entries %d\n", entries),
			fmt.Sprintf("\nruntime_watcher_revocations_broken %d\n", broken))
	}

	want(0, 1)
	live := intake.NewLiveRevocations(intake.RevocationOptions{Changed: changed})
	check(t, live.Replace([]byte("name:a\nname:b")))
	want(2, 0)

	if live.Replace([]byte("a")) == nil {
		t.Error("a malformed list is accepted")
	}

	want(2, 1)
	check(t, live.Replace([]byte("name:a\nname:b")))
	want(2, 0)
	live.Fail(errBroken)
	want(2, 1)
	check(t, live.Replace(nil))
	want(0, 0)
}

func TestListenerBoundsManagers(t *testing.T) {
	listener, reg := registered(t, watchermetrics.NewListener, watchermetrics.Options{MaxManagers: 2, Managers: []core.Manager{"known"}})
	listener.Hooks.Answered(hook.Answer{Status: http.StatusNotFound, Reason: "unknown_path", Took: time.Microsecond})

	for i := range 100 {
		manager := core.Manager(fmt.Sprintf("guess-%d", i))
		listener.Hooks.Answered(hook.Answer{
			Contract: "v2", Manager: manager, Status: http.StatusNotFound, Reason: "unknown_manager", Took: time.Microsecond,
		})
	}

	listener.Hooks.Answered(hook.Answer{
		Contract: "v2", Manager: "known", Status: http.StatusServiceUnavailable, Reason: "not_ready", Took: time.Microsecond,
	})
	listener.Hooks.Answered(hook.Answer{
		Contract: "v2", Manager: "known", Status: 0, Reason: "\xff", Took: time.Microsecond,
	})
	wantLines(t, scrape(t, reg),
		`requests_total{code="404",contract="",manager="_other",reason="unknown_path"} 1`,
		`requests_total{code="404",contract="v2",manager="guess-0",reason="unknown_manager"} 1`,
		`requests_total{code="404",contract="v2",manager="_other",reason="unknown_manager"} 99`,
		`requests_total{code="503",contract="v2",manager="known",reason="not_ready"} 1`,
		`requests_total{code="other",contract="v2",manager="known",reason="other"} 1`,
	)
}

// TestListenerAliases wants the names and labels of the former listener, and none unless asked for.
func TestListenerAliases(t *testing.T) {
	const former = "watcher_listener_"
	listener, reg := registered(t, watchermetrics.NewListener, watchermetrics.Options{Aliases: true})

	for _, status := range []int{
		http.StatusOK, http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnauthorized, http.StatusForbidden,
	} {
		listener.Hooks.Answered(hook.Answer{Contract: "v2", Manager: "known", Status: status, Took: time.Second})
	}

	listener.Hooks.InFlight(2)
	text := "\n" + scrape(t, reg)

	for _, want := range []string{
		`requests_total{server_name="listener"} 5`, `request_errors_total{server_name="listener"} 4`,
		`exceeding_size_limit_requests_total{server_name="listener"} 1`,
		`failed_verification_requests_total{request_uri_label="/v2/known/event",server_name="listener"} 2`,
		`request_duration{server_name="listener"} 1`, `inflight_requests{server_name="listener"} 2`,
	} {
		if !strings.Contains(text, "\n"+former+want+"\n") {
			t.Errorf("no %s%s in\n%s", former, want, text)
		}
	}

	_, reg = registered(t, watchermetrics.NewListener, watchermetrics.Options{})
	if text := "\n" + scrape(t, reg); strings.Contains(text, "\n"+former) {
		t.Errorf("aliases that were not asked for in\n%s", text)
	}
}

// An operator that also has the former listener has registered its names, with other labels and
// other words. That must not end the operator.
func TestAliasesTolerateRegisteredNames(t *testing.T) {
	reg := prom.NewRegistry()
	theirs := prom.NewGaugeVec(prom.GaugeOpts{Name: "watcher_listener_requests_total", Help: "theirs"}, []string{"server_name"})
	reg.MustRegister(theirs)
	theirs.WithLabelValues("theirs").Set(7)
	listener, err := watchermetrics.NewListener(reg, watchermetrics.Options{Aliases: true})
	if err != nil {
		t.Fatal(err)
	}

	listener.Hooks.Answered(hook.Answer{Contract: "v2", Manager: "known", Status: http.StatusForbidden})
	text := "\n" + scrape(t, reg)

	for _, want := range []string{
		`requests_total{server_name="theirs"} 7`, `request_errors_total{server_name="listener"} 1`,
	} {
		if !strings.Contains(text, "\nwatcher_listener_"+want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}

	if _, err := watchermetrics.NewListener(reg, watchermetrics.Options{Aliases: true}); err == nil {
		t.Error("a second listener in one registry is accepted")
	}
}

// Each message has one fate. A verifier or handler of the operator may choose reasons, so they are
// bounded.
func TestConsumerCountsMessages(t *testing.T) {
	consumer, reg := registered(t, watchermetrics.NewConsumer, watchermetrics.Options{MaxManagers: 1})
	consumer.Concluded(hook.Conclusion{Manager: "kyma", Fate: "enqueued", Took: 3 * time.Millisecond})
	consumer.Concluded(hook.Conclusion{Manager: "kyma", Fate: "enqueued", Took: 3 * time.Millisecond})
	consumer.Concluded(hook.Conclusion{
		Manager: "kyma", Fate: "terminated", Reason: "forbidden", Took: time.Millisecond,
	})
	consumer.Concluded(hook.Conclusion{
		Manager: "another", Fate: "delayed", Reason: "not_ready", Took: time.Millisecond,
	})

	for i := range 100 {
		consumer.Concluded(hook.Conclusion{
			Manager: "kyma", Fate: "delayed", Reason: core.Reason(fmt.Sprintf("reason-%d", i)), Took: time.Millisecond,
		})
	}

	consumer.Backlog(hook.Backlog{Manager: "kyma", Messages: 12, Filled: 0.5, Oldest: time.Minute})
	consumer.Redelivered(hook.Redelivery{Manager: "kyma"})
	wantLines(t, scrape(t, reg),
		`runtime_watcher_consumer_backlog_messages{manager="kyma"} 12`,
		`runtime_watcher_consumer_backlog_ratio{manager="kyma"} 0.5`,
		`runtime_watcher_consumer_backlog_age_seconds{manager="kyma"} 60`,
		`runtime_watcher_consumer_redelivered_messages_total{manager="kyma"} 1`,
		`runtime_watcher_consumer_messages_total{fate="enqueued",manager="kyma",reason=""} 2`,
		`runtime_watcher_consumer_messages_total{fate="terminated",manager="kyma",reason="forbidden"} 1`,
		`runtime_watcher_consumer_messages_total{fate="delayed",manager="_other",reason="not_ready"} 1`,
		`runtime_watcher_consumer_messages_total{fate="delayed",manager="kyma",reason="other"} 38`,
		`runtime_watcher_consumer_message_duration_seconds_bucket{fate="enqueued",le="0.005"} 2`,
		`runtime_watcher_consumer_message_duration_seconds_count{fate="delayed"} 101`,
	)

	// The backlog of a stream that cannot be read is unknown, and not 0.
	consumer.Unavailable(hook.Unavailability{Manager: "kyma", Reason: "stream"})
	text := scrape(t, reg)
	wantLines(t, text, `runtime_watcher_consumer_stream_unavailable{manager="kyma"} 1`)
	if strings.Contains(text, "consumer_backlog") {
		t.Errorf("there is a backlog of a stream that cannot be read:\n%s", text)
	}

	consumer.Unavailable(hook.Unavailability{Manager: "kyma"})
	consumer.Backlog(hook.Backlog{Manager: "kyma", Messages: 3, Filled: 0.5, Oldest: time.Minute})
	wantLines(t, scrape(t, reg),
		`runtime_watcher_consumer_stream_unavailable{manager="kyma"} 0`,
		`runtime_watcher_consumer_backlog_messages{manager="kyma"} 3`,
	)
}

func TestManagersBeyondTheLimitShareSeries(t *testing.T) {
	agent, reg := newAgent(t, watchermetrics.Options{MaxManagers: 2, Managers: []core.Manager{"known"}})
	box := newOutbox(t, agent, discard, outbox.Options{})
	box.Accept("guess-0", core.WatchEvent{})
	gatherFates(t, reg)

	for i := range 10 {
		box.Accept(core.Manager(fmt.Sprintf("guess-%d", i+1)), core.WatchEvent{})
	}

	box.Accept("known", core.WatchEvent{})
	box.Accept("Not A Label\xff", core.WatchEvent{})
	agent.Reviewed(hook.Review{Manager: "guess-7", Decision: "accepted", Took: time.Microsecond})

	want := map[string]fates{
		"known":   {"accepted": 1, "pending": 1},
		"guess-0": {"accepted": 1, "pending": 1},
		"_other":  {"accepted": 11, "pending": 11},
	}
	if diff := cmp.Diff(want, gatherFates(t, reg)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if text := scrape(t, reg); !strings.Contains(text, `reviews_total{decision="accepted",manager="_other"} 1`) {
		t.Errorf("no review of another manager in\n%s", text)
	}
}

func TestForeignWordsAreBounded(t *testing.T) {
	agent, reg := newAgent(t, watchermetrics.Options{})
	for i := range 1000 {
		word := fmt.Sprintf("word_%d", i)
		agent.Reviewed(hook.Review{Manager: "kyma", Decision: hook.Decision(word), Took: time.Microsecond})
		agent.Refused(hook.Refusal{Status: http.StatusBadRequest, Reason: core.Reason(word), Took: time.Microsecond})
		agent.Attempted(hook.Attempt{Manager: "kyma", Events: 1, Took: time.Millisecond, Err: refusal(word)})
		agent.OwnerProblem(hook.OwnerProblem{Manager: "kyma", Problem: hook.OwnerFault(word)})
		agent.Panicked(hook.Panic{Place: hook.Place(word)})
		agent.KeyMaterial(word).Reloaded(keys.Generation{NotBefore: time.Unix(1, 0), NotAfter: time.Unix(2, 0)})
		agent.KeyMaterial("client").Refused(keys.Refusal{Problem: keys.Problem(word)})
	}

	agent.Refused(hook.Refusal{Status: http.StatusBadRequest, Reason: "\xff", Took: time.Microsecond})
	agent.Refused(hook.Refusal{Status: http.StatusBadRequest, Reason: core.Reason(strings.Repeat("a", 65)), Took: time.Microsecond})
	// 64 words, "other", and those that exist from the start.
	const want = 64 + 1 + 2

	families := must(reg.Gather())(t)
	for _, family := range families {
		if n := len(family.GetMetric()); n > want {
			t.Errorf("%s has %d series, want at most %d", family.GetName(), n, want)
		}
	}
}

func TestAttemptsAreCountedByTheResultOfEachEvent(t *testing.T) {
	agent, reg := newAgent(t, watchermetrics.Options{})
	agent.Attempted(hook.Attempt{
		Manager: "kyma", Events: 4, Took: time.Millisecond,
		Err: fmt.Errorf("batch: %w", core.EventErrors{0: refusal("malformed"), 3: errBroken, 4: core.ErrNotSent}),
	})
	agent.Attempted(hook.Attempt{Manager: "kyma", Events: 2, Took: time.Millisecond, Err: errBroken})
	text := scrape(t, reg)
	wantLines(t, text,
		`forward_events_total{manager="kyma",result="ok"} 2`,
		`forward_events_total{manager="kyma",result="malformed"} 1`,
		`forward_events_total{manager="kyma",result="other"} 3`,
		`forward_duration_seconds_count{result="partial"} 1`,
		`forward_duration_seconds_count{result="other"} 1`,
		`forward_duration_seconds_count{result="ok"} 0`,
	)
	if strings.Contains(text, "not_sent") || strings.Contains(text, "last_success") {
		t.Errorf("the heartbeat is counted, or a failure is a success:\n%s", text)
	}
}

func TestExpiresIsRemovedByTheZeroTime(t *testing.T) {
	agent, reg := newAgent(t, watchermetrics.Options{})
	material := agent.KeyMaterial("client")
	material.Reloaded(keys.Generation{NotBefore: time.Unix(2, 0), NotAfter: time.Unix(5, 0)})
	wantLines(t, scrape(t, reg), `agent_certificate_expiry_timestamp_seconds{use="client"} 5`,
		`agent_certificate_lifetime_seconds{use="client"} 3`)
	material.Reloaded(keys.Generation{})

	if text := scrape(t, reg); strings.Contains(text, "certificate_expiry") || strings.Contains(text, "certificate_lifetime") {
		t.Error("expiry or lifetime is still exposed")
	}
}

// A receiver compares the managers of its metrics with those that it serves.
func TestHooksNameTheManagersOfTheOptions(t *testing.T) {
	opts := watchermetrics.Options{Managers: []core.Manager{"one", "two"}}
	listener, _ := registered(t, watchermetrics.NewListener, opts)
	consumer, _ := registered(t, watchermetrics.NewConsumer, opts)
	if !slices.Equal(listener.Hooks.Managers, opts.Managers) || !slices.Equal(consumer.Managers, opts.Managers) {
		t.Errorf("hooks of a listener for %q, and of a consumer for %q, want %q", listener.Hooks.Managers, consumer.Managers, opts.Managers)
	}
}
