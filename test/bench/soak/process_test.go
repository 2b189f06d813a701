package soak

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// sample has the resources of a process at one moment.
type sample struct {
	phase      string
	at         time.Duration
	resident   float64 // MiB
	files      int
	goroutines int
}

// watched is a process with regular samples of its resources.
type watched struct {
	t     *testing.T
	agent *lab.Agent
	began time.Time
	stop  func()

	mu      sync.Mutex
	current string
	samples []sample
}

func watchProcess(t *testing.T, agent *lab.Agent) *watched {
	t.Helper()
	w := &watched{t: t, agent: agent, began: time.Now(), current: "work"}
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
	files := lab.Must(os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.agent.Pid())))
	resident, _ := used(w.agent)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.samples = append(w.samples, sample{w.current, time.Since(w.began), resident, len(files), int(lab.Sum(text, "go_goroutines"))})
}

// used is the use of resources, in MiB. The peak is also that between the samples.
func used(agent *lab.Agent) (resident, peak float64) {
	u := lab.Must(kit.UsageOf(agent.Pid()))
	return float64(u.Resident) / (1 << 20), float64(u.Peak) / (1 << 20)
}

func (w *watched) summary() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.samples) == 0 {
		return "no samples yet"
	}
	last := w.samples[len(w.samples)-1]
	_, peak := used(w.agent)
	return fmt.Sprintf("%.1f MiB resident (peak %.1f), %d open files, %d goroutines, after %v",
		last.resident, peak, last.files, last.goroutines, last.at.Round(time.Second))
}

// number is a value that must not grow, with the tolerance between two thirds of the samples.
type number struct {
	name  string
	slack float64
	of    func(sample) float64
}

func numbers() []number {
	return []number{
		{"MiB resident", *slack, func(s sample) float64 { return s.resident }},
		{"open files", 6, func(s sample) float64 { return float64(s.files) }},
		{"goroutines", 12, func(s sample) float64 { return float64(s.goroutines) }},
	}
}

// problems returns the numbers that grew or are too large.
func (w *watched) problems(memory float64) (found []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	const least = 30
	if len(w.samples) < least {
		return []string{fmt.Sprintf("%d samples, want at least %d to say anything", len(w.samples), least)}
	}
	for _, n := range numbers() {
		if text := n.growth(w.samples); text != "" {
			found = append(found, text)
		}
	}
	if highest := slices.MaxFunc(w.samples, byResident); highest.resident > memory {
		found = append(found, fmt.Sprintf("%.1f MiB were resident in phase %q, want at most %.0f", highest.resident,
			highest.phase, memory))
	}
	return found
}

func byResident(a, b sample) int { return int(1024 * (a.resident - b.resident)) }

// growth compares like phases: work with work, after a third of it in which the process warms up,
// and the second outage with the first. The Go runtime returns the memory of an outage to the
// system over minutes.
func (n number) growth(all []sample) string {
	phase := func(prefix string) []float64 {
		return n.values(all, func(s sample) bool { return strings.HasPrefix(s.phase, prefix) })
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

func (n number) values(all []sample, wanted func(sample) bool) (values []float64) {
	for _, s := range all {
		if wanted(s) {
			values = append(values, n.of(s))
		}
	}
	return values
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(values))[len(values)/2]
}
