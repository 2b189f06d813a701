// Schedules have many handshakes, and nothing here depends on the post-quantum key exchange.
//
//go:debug tlsmlkem=0

package simulation

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
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
	began, n := time.Now(), 0
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
	before, percent := runtime.GOMAXPROCS(1), debug.SetGCPercent(rareCollections)
	t.Cleanup(func() {
		runtime.GOMAXPROCS(before)
		debug.SetGCPercent(percent)
	})
	keys, err := newPKI()
	if err != nil {
		t.Fatal(err)
	}
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
