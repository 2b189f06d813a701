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

func TestForgetFreesSeriesOnceNothingIsPending(t *testing.T) {
	agent, reg := newAgent(t, prometheus.Options{})
	exposed := func() bool { return strings.Contains(scrape(t, reg), `manager="kyma"`) }

	agent.Counted("kyma", outbox.Counts{Accepted: 1, Pending: 1})
	agent.Reviewed("kyma", "accepted", time.Microsecond)
	agent.Attempted("kyma", 1, time.Millisecond, nil)
	agent.Forget("kyma")

	if !exposed() {
		t.Fatal("series are gone while an event is pending")
	}

	agent.Counted("kyma", outbox.Counts{Delivered: 1, Pending: -1})

	if exposed() {
		t.Fatalf("series are still there:\n%s", scrape(t, reg))
	}

	agent.Forget("never-seen")
	agent.Counted("kyma", outbox.Counts{Accepted: 1, Coalesced: 1})

	if !strings.Contains(scrape(t, reg), `events_accepted_total{manager="kyma"} 1`) {
		t.Error("series do not start from zero again")
	}
}

func TestForgottenManagerThatComesBackStays(t *testing.T) {
	agent, reg := newAgent(t, prometheus.Options{})

	agent.Counted("kyma", outbox.Counts{Accepted: 1, Pending: 1})
	agent.Forget("kyma")
	agent.Counted("kyma", outbox.Counts{Accepted: 1, Pending: 1})
	agent.Counted("kyma", outbox.Counts{Delivered: 2, Pending: -2})

	if !strings.Contains(scrape(t, reg), `events_delivered_total{manager="kyma"} 2`) {
		t.Error("a manager in use lost its series")
	}
}

func TestManagersBeyondTheBoundShareSeries(t *testing.T) {
	agent, reg := newAgent(t, prometheus.Options{MaxManagers: 2, Managers: []core.Manager{"known"}})

	for i := range 10 {
		agent.Counted(core.Manager(fmt.Sprintf("guess-%d", i)), outbox.Counts{Accepted: 1, Pending: 1})
	}

	agent.Counted("known", outbox.Counts{Accepted: 1, Pending: 1})
	agent.Counted("Not A Label\xff", outbox.Counts{Accepted: 1, Pending: 1})

	got, err := gatherFates(reg)
	if err != nil {
		t.Fatal(err)
	}

	delete(got, "")

	want := map[string]fates{
		"known":          {accepted: 1, pending: 1},
		"guess-0":        {accepted: 1, pending: 1},
		prometheus.Other: {accepted: 10, pending: 10},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(fates{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWordsFromOutsideAreBounded(t *testing.T) {
	agent, reg := newAgent(t, prometheus.Options{})

	for i := range 1000 {
		word := fmt.Sprintf("word_%d", i)
		agent.Reviewed("kyma", word, time.Microsecond)
		agent.Refused(http.StatusBadRequest, word, time.Microsecond)
		agent.Attempted("kyma", 1, time.Millisecond, refusal(word))
		agent.Counted("kyma", outbox.Counts{Accepted: 1, Dropped: map[string]int64{word: 1}})
		agent.OwnerProblem("kyma", word)
		agent.Panicked(word)
		agent.KeyMaterial(word).Reloaded(time.Unix(1, 0))
		agent.KeyMaterial("client").Refused(word)
	}

	agent.Refused(http.StatusBadRequest, "\xff", time.Microsecond)
	agent.Refused(http.StatusBadRequest, strings.Repeat("a", 65), time.Microsecond)

	// 64 words, "other", and those that are there from the start.
	const want = 64 + 1 + 2

	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}

	for _, family := range families {
		if n := len(family.GetMetric()); n > want {
			t.Errorf("%s has %d series, want at most %d", family.GetName(), n, want)
		}
	}

	all, err := gatherFates(reg)
	if err != nil {
		t.Fatal(err)
	}

	if want := (fates{accepted: 1000, dropped: 1000}); all["kyma"] != want {
		t.Errorf("got %+v, want %+v", all["kyma"], want)
	}
}

func TestAttemptsAreCountedByWhatBecameOfEachEvent(t *testing.T) {
	agent, reg := newAgent(t, prometheus.Options{})

	agent.Attempted("kyma", 4, time.Millisecond, fmt.Errorf("batch: %w", core.EventErrors{0: refusal("malformed"), 3: errBroken}))
	agent.Attempted("kyma", 2, time.Millisecond, errBroken)

	text := scrape(t, reg)
	for _, want := range []string{
		`forward_events_total{manager="kyma",result="ok"} 2`,
		`forward_events_total{manager="kyma",result="malformed"} 1`,
		`forward_events_total{manager="kyma",result="other"} 3`,
		`forward_duration_seconds_count{result="partial"} 1`,
		`forward_duration_seconds_count{result="other"} 1`,
		`forward_duration_seconds_count{result="ok"} 0`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

func TestExpiresIsRemovedByTheZeroTime(t *testing.T) {
	agent, reg := newAgent(t, prometheus.Options{})

	material := agent.KeyMaterial("client")
	material.Reloaded(time.Unix(5, 0))

	if !strings.Contains(scrape(t, reg), `certificate_expiry_timestamp_seconds{use="client"} 5`) {
		t.Fatal("expiry is not exposed")
	}

	material.Reloaded(time.Time{})

	if strings.Contains(scrape(t, reg), "certificate_expiry_timestamp_seconds") {
		t.Error("expiry is still exposed")
	}
}

func BenchmarkAgentReviewed(b *testing.B) {
	agent, _ := newAgent(b, prometheus.Options{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			agent.Reviewed("kyma", "accepted", 100*time.Microsecond)
		}
	})
}
