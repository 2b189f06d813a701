// Schedules have many handshakes, and nothing here depends on the post-quantum key exchange.
//
//go:debug tlsmlkem=0

package simulation

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server/ats"

	"github.com/runtime-watcher/runtime-watcher/test/simulation/oracle"
)

var (
	seed    = flag.Uint64("seed", 1, "the first seed")
	seeds   = flag.Int("seeds", few, "the number of seeds; -seeds 1 has one process")
	workers = flag.Int("workers", runtime.NumCPU(), "the most processes that share the seeds, each with one processor")
	keepOn  = flag.Bool("keep-on", false, "do not stop at the first failing seed")
	printed = flag.Bool("log", false, "print what happens, in virtual time")
	smaller = flag.Bool("shrink", true, "look for fewer faults and writes that still fail")
)

// few schedules are those of make test, where the race detector makes each four times as long.
const few = 20

// TestSimulation runs one plan after the other, each in a bubble of virtual time.
func TestSimulation(t *testing.T) {
	if n := min(*workers, *seeds); n > 1 {
		share(t, n)
		return
	}
	keys := testPKI(t)
	began := time.Now()
	n := 0
	for failed := false; n < *seeds && (!failed || *keepOn); n++ {
		failed = play(t, draw(*seed+uint64(n)), keys)
	}
	took := time.Since(began)
	t.Logf("%d schedules in %s, %.0f a minute", n, took.Round(time.Millisecond), float64(n)/took.Minutes())
}

// testPKI also limits the test to one processor, so that the order of goroutines is nearly repeatable.
func testPKI(t *testing.T) *pki {
	t.Helper()
	const rareCollections = 400 // A schedule has much garbage and a small heap.
	before := runtime.GOMAXPROCS(1)
	percent := debug.SetGCPercent(rareCollections)
	t.Cleanup(func() {
		runtime.GOMAXPROCS(before)
		debug.SetGCPercent(percent)
	})
	keys := newPKI()
	keys.store = t.TempDir()
	ats.Register() // The server's clock is one for all bubbles.
	return keys
}

// play runs one plan, logs the violations that the oracle finds, and reports whether there are any.
func play(t *testing.T, plan *Plan, keys *pki) bool {
	t.Helper()
	var story story
	found := simulate(t, plan, keys, &story)
	if *printed {
		t.Log(story.String())
	}
	if len(found) == 0 {
		return false
	}
	t.Errorf("seed %d: its log is in %s\nrun it alone: go test ./test/simulation -v -seed %d -seeds 1 -log\n%s\n%s",
		plan.Seed, story.save(t, plan.Seed), plan.Seed, oracle.String(found), plan)
	if *smaller {
		t.Logf("the smallest plan that was found to fail in the same way:\n%s", shrink(t, plan, keys, found[0].Rule))
	}
	return true
}

// hang is the real time after which a schedule counts as hanging: virtual time stands still.
const hang = 4 * time.Minute

func simulate(t *testing.T, plan *Plan, keys *pki, story *story) (found []oracle.Violation) {
	t.Helper()
	watchdog := time.AfterFunc(hang, func() { panic(fmt.Sprintf("seed %d does not end", plan.Seed)) })
	defer watchdog.Stop()
	if plan.NATS {
		// nats.go keeps timers in a pool. One of an earlier bubble would end the process. A pool is
		// empty after two collections.
		runtime.GC()
		runtime.GC()
	}
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		found = newWorld(plan, keys, story.add).run()
	})
	return found
}

// story is the log of a schedule, in virtual time.
type story struct {
	mu    sync.Mutex
	lines []string
}

func (s *story) add(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line)
}

func (s *story) String() string { return "\n" + strings.Join(s.lines, "\n") }

// save writes the log to a file, because another run may differ.
func (s *story) save(t *testing.T, seed uint64) string {
	t.Helper()
	file, err := os.CreateTemp("", fmt.Sprintf("simulation-seed-%d-*.log", seed)) //nolint:usetesting // It outlives the test.
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if _, err := file.WriteString(s.String()); err != nil {
		return err.Error()
	}
	return file.Name()
}

// share runs the seeds in several processes of this program, as each of them has one processor.
func share(t *testing.T, processes int) {
	t.Helper()
	var running sync.WaitGroup
	each := (*seeds + processes - 1) / processes
	for i := range processes {
		running.Go(func() { work(t, *seed+uint64(i*each), each) })
	}
	running.Wait()
}

func work(t *testing.T, first uint64, n int) {
	t.Helper()
	worker := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSimulation$", "-test.v", "-test.timeout=0", "-workers=1",
		"-seed", strconv.FormatUint(first, 10), "-seeds", strconv.Itoa(n),
		"-keep-on="+strconv.FormatBool(*keepOn), "-shrink="+strconv.FormatBool(*smaller))
	out, err := worker.CombinedOutput()
	if err != nil {
		t.Errorf("seeds from %d on: %v", first, err)
	}
	t.Logf("seeds from %d on:\n%s", first, out)
}

// mostRuns bounds the runs of a shrink.
const mostRuns = 200

// shrinker looks for the smallest plan that fails by a rule.
type shrinker struct {
	keys *pki
	rule string
	runs int
}

// shrink leaves out faults and writes, in ever smaller parts, while the plan still fails by the rule.
func shrink(t *testing.T, plan *Plan, keys *pki, rule string) *Plan {
	t.Helper()
	s := &shrinker{keys: keys, rule: rule}
	plan = s.without(t, plan, len(plan.Faults), withoutFaults)
	plan = s.without(t, plan, len(plan.Writes), withoutWrites)
	return plan
}

func withoutFaults(plan Plan, from, to int) *Plan {
	plan.Faults = slices.Delete(slices.Clone(plan.Faults), from, min(to, len(plan.Faults)))
	return &plan
}

func withoutWrites(plan Plan, from, to int) *Plan {
	plan.Writes = slices.Delete(slices.Clone(plan.Writes), from, min(to, len(plan.Writes)))
	return &plan
}

func (s *shrinker) without(t *testing.T, plan *Plan, n int, cut func(plan Plan, from, to int) *Plan) *Plan {
	t.Helper()
	for part := max(n/2, 1); part > 0; part /= 2 {
		for from := 0; from < n && s.runs < mostRuns; {
			smaller := cut(*plan, from, from+part)
			if s.fails(t, smaller) {
				plan, n = smaller, n-min(part, n-from)
			} else {
				from += part
			}
		}
	}
	return plan
}

func (s *shrinker) fails(t *testing.T, plan *Plan) bool {
	t.Helper()
	s.runs++
	for _, v := range simulate(t, plan, s.keys, new(story)) {
		if v.Rule == s.rule {
			return true
		}
	}
	return false
}
