package soak

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// number is a metric of a process that must not grow, with the tolerance between two thirds of the
// samples.
type number struct {
	name, metric string
	unit, slack  float64
}

func numbers() []number {
	return []number{
		{"MiB resident", "process_resident_memory_bytes", 1 << 20, *slack},
		{"open files", "process_open_fds", 1, 6},
		{"goroutines", "go_goroutines", 1, 12},
	}
}

// sample has the numbers of a process at one moment.
type sample struct {
	phase  string
	values []float64
}

// watched is a process with regular samples of its resources.
type watched struct {
	agent *lab.Agent
	began time.Time
	stop  func()

	mu      sync.Mutex
	current string
	samples []sample
}

func watchProcess(t *testing.T, agent *lab.Agent) *watched {
	t.Helper()
	w := &watched{agent: agent, began: time.Now(), current: "work"}
	w.stop = lab.Run(t, "samples", func(ctx context.Context) error {
		for tick := time.Tick(100 * time.Millisecond); ctx.Err() == nil; <-tick {
			w.sample()
		}
		return nil
	})
	return w
}

func (w *watched) phase(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.current = name
}

func (w *watched) sample() {
	text, err := lab.Get(context.Background(), "http://"+lab.Address(w.agent.MetricsPort)+"/metrics")
	if err != nil {
		return // The scrape is late on a busy machine; there are others.
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := sample{phase: w.current}
	for _, n := range numbers() {
		s.values = append(s.values, lab.Sum(text, n.metric)/n.unit)
	}
	w.samples = append(w.samples, s)
}

// peak is the highest resident memory, in MiB. It is also that between the samples.
func peak(agent *lab.Agent) float64 {
	return float64(lab.Must(kit.UsageOf(agent.Pid())).Peak) / (1 << 20)
}

func (w *watched) summary() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.samples) == 0 {
		return "no samples yet"
	}
	var text strings.Builder
	for i, n := range numbers() {
		fmt.Fprintf(&text, "%.1f %s, ", w.samples[len(w.samples)-1].values[i], n.name)
	}
	return fmt.Sprintf("%speak %.1f MiB, after %v", &text, peak(w.agent), time.Since(w.began).Round(time.Second))
}

// problems returns the numbers that grew or are too large.
func (w *watched) problems(memory float64) (found []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	const least = 30
	if len(w.samples) < least {
		return []string{fmt.Sprintf("%d samples, want at least %d to say anything", len(w.samples), least)}
	}
	for i, n := range numbers() {
		if text := w.growth(i, n); text != "" {
			found = append(found, text)
		}
	}
	highest := slices.MaxFunc(w.samples, func(a, b sample) int { return cmp.Compare(a.values[0], b.values[0]) })
	if highest.values[0] > memory {
		found = append(found, fmt.Sprintf("%.1f MiB were resident in phase %q, want at most %.0f", highest.values[0],
			highest.phase, memory))
	}
	return found
}

// growth compares like phases: work with work, after a third of it in which the process warms up,
// and the second outage with the first. The Go runtime returns the memory of an outage to the
// system over minutes.
func (w *watched) growth(i int, n number) string {
	phase := func(prefix string) (values []float64) {
		for _, s := range w.samples {
			if strings.HasPrefix(s.phase, prefix) {
				values = append(values, s.values[i])
			}
		}
		return values
	}
	work := phase("work")
	work = work[len(work)/3:]
	for _, pair := range []struct {
		name         string
		early, later []float64
	}{
		{"during the work", work[:len(work)/3], work[len(work)*2/3:]},
		{"from the first to the second outage", phase("first outage"), phase("second outage")},
		{"from after the first to after the second outage", phase("after the first"), phase("after the second")},
	} {
		if early, later := median(pair.early), median(pair.later); later > early+n.slack {
			return fmt.Sprintf("%s grew from %.1f to %.1f %s, want them flat", n.name, early, later, pair.name)
		}
	}
	return ""
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(values))[len(values)/2]
}
