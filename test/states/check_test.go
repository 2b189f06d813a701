package states

import (
	"fmt"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// measurement describes the writes of one state.
type measurement struct {
	writes   []time.Duration
	errors   int
	agent    lab.Histogram // the webhook's own time, in the agent
	waited   lab.Histogram // the waits of the API server for the webhook
	allowed  float64       // answers 200 with allowed: true
	failOpen float64       // writes that went on without an answer
}

func measure(t *testing.T, runtime *apiserver.ControlPlane, all []*subject) map[string]measurement {
	t.Helper()
	text := lab.ScrapeAPIServer(t, runtime)
	measured := make(map[string]measurement, len(all))
	for _, s := range all {
		m := measurement{writes: s.writes, errors: s.errors}.ask(text, s.webhookLabel())
		if s.agent != nil {
			own := s.agent.Scrape()
			m.agent = lab.ParseHistogram(own, duration)
			s.pending = lab.Sum(own, "runtime_watcher_agent_events_pending")
		}

		measured[s.name] = m.minus(s.before)
	}
	return measured
}

// ask returns m with the metrics of an API server about a webhook.
func (m measurement) ask(text []byte, label string) measurement {
	m.waited = lab.ParseHistogram(text, webhook+"admission_duration_seconds", label)
	m.allowed = lab.Sum(text, webhook+"request_total", label, `code="200"`, `rejected="false"`)
	m.failOpen = lab.Sum(text, webhook+"fail_open_count", label)
	return m
}

// minus returns m without the observations before.
func (m measurement) minus(before measurement) measurement {
	m.agent = m.agent.Minus(before.agent)
	m.waited = m.waited.Minus(before.waited)
	m.allowed -= before.allowed
	m.failOpen -= before.failOpen
	return m
}

// limits are those for the writes of a state.
type limits struct {
	// p99 of the webhook's own time.
	p99 time.Duration
	// factor and slack are how much worse than with a control plane that is up something may be.
	factor float64
	slack  time.Duration
}

// theLimits are those of a machine that others use, too, unless -strict is given. A write that
// waited for the control plane would take tens of milliseconds or more.
func theLimits() limits {
	if *strict {
		return limits{p99: time.Millisecond, factor: 2, slack: 100 * time.Microsecond}
	}
	return limits{p99: 50 * time.Millisecond, factor: 5, slack: 5 * time.Millisecond}
}

func (l limits) of(up time.Duration) time.Duration {
	return time.Duration(l.factor*float64(up)) + l.slack
}

// problems returns the violations of a state, compared to a control plane that is up.
func problems(m, up measurement, l limits) (found []string) {
	wrong := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	if m.errors > 0 {
		wrong("%d of %d writes failed, want none", m.errors, len(m.writes))
	}

	if m.failOpen > 0 {
		wrong("the API server went on without an answer %v times, want never", m.failOpen)
	}

	if want := float64(len(m.writes)); m.allowed < want {
		wrong("%v answers were 200 and allowed: true, want one for each of %v writes", m.allowed, want)
	}

	if want := float64(len(m.writes)); m.agent.Count < want {
		wrong("the webhook was called %v times for %v writes", m.agent.Count, want)
	}

	if have := m.agent.Quantile(0.99); have > l.p99 {
		wrong("the webhook took up to %v at p99, want at most %v", have, l.p99)
	}

	if have, want := m.agent.Mean(), l.of(up.agent.Mean()); have > want {
		wrong("the webhook took %v in the mean, want at most %v as it took %v with the control plane up", have, want,
			up.agent.Mean())
	}

	have, base := quantile(m.writes, 0.5), quantile(up.writes, 0.5)
	if want := l.of(base); have > want {
		wrong("half of the writes took more than %v, want at most %v as it was %v with the control plane up", have,
			want, base)
	}
	return found
}

// A webhook that waits for its control plane must not pass.
func TestProblemsAreFound(t *testing.T) {
	up := measurement{
		writes: []time.Duration{time.Millisecond}, allowed: 1,
		agent: lab.Histogram{Upper: []float64{0.001}, Counts: []float64{1}, Count: 1, Sum: 0.001},
	}
	waits := measurement{
		writes: []time.Duration{time.Second}, allowed: 1,
		agent: lab.Histogram{Upper: []float64{1}, Counts: []float64{1}, Count: 1, Sum: 1},
	}
	failed := up
	failed.errors, failed.failOpen, failed.allowed, failed.agent = 1, 1, 0, lab.Histogram{}
	if found := problems(up, up, theLimits()); len(found) > 0 {
		t.Errorf("%q with the control plane up, want none", found)
	}

	if found := problems(waits, up, theLimits()); len(found) != 3 {
		t.Errorf("%q of a webhook that waits, want its p99, its mean, and the writes", found)
	}

	if found := problems(failed, up, theLimits()); len(found) != 4 {
		t.Errorf("%q of a webhook that fails, want 4 problems", found)
	}
}
