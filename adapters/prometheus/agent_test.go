package prometheus_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

func TestManagersBeyondTheLimitShareSeries(t *testing.T) {
	agent, reg := newAgent(t, prometheus.Options{MaxManagers: 2, Managers: []core.Manager{"known"}})
	box := newOutbox(t, agent, discard, outbox.Options{})
	box.Accept("guess-0", core.WatchEvent{})
	gatherFates(t, reg)
	for i := range 10 {
		box.Accept(core.Manager(fmt.Sprintf("guess-%d", i+1)), core.WatchEvent{})
	}
	box.Accept("known", core.WatchEvent{})
	box.Accept("Not A Label\xff", core.WatchEvent{})
	agent.Reviewed("guess-7", "accepted", time.Microsecond)
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
	agent, reg := newAgent(t, prometheus.Options{})
	for i := range 1000 {
		word := fmt.Sprintf("word_%d", i)
		agent.Reviewed("kyma", word, time.Microsecond)
		agent.Refused(http.StatusBadRequest, word, time.Microsecond)
		agent.Attempted("kyma", 1, time.Millisecond, refusal(word))
		agent.OwnerProblem("kyma", word)
		agent.Panicked(word)
		agent.KeyMaterial(word).Reloaded(time.Unix(1, 0), time.Unix(2, 0))
		agent.KeyMaterial("client").Refused(word)
	}
	agent.Refused(http.StatusBadRequest, "\xff", time.Microsecond)
	agent.Refused(http.StatusBadRequest, strings.Repeat("a", 65), time.Microsecond)
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
	agent, reg := newAgent(t, prometheus.Options{})
	agent.Attempted("kyma", 4, time.Millisecond,
		fmt.Errorf("batch: %w", core.EventErrors{0: refusal("malformed"), 3: errBroken, 4: core.ErrNotSent}))
	agent.Attempted("kyma", 2, time.Millisecond, errBroken)
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
	agent, reg := newAgent(t, prometheus.Options{})
	material := agent.KeyMaterial("client")
	material.Reloaded(time.Unix(2, 0), time.Unix(5, 0))
	wantLines(t, scrape(t, reg), `agent_certificate_expiry_timestamp_seconds{use="client"} 5`,
		`agent_certificate_lifetime_seconds{use="client"} 3`)
	material.Reloaded(time.Time{}, time.Time{})
	if text := scrape(t, reg); strings.Contains(text, "certificate_expiry") || strings.Contains(text, "certificate_lifetime") {
		t.Error("expiry or lifetime is still exposed")
	}
}
