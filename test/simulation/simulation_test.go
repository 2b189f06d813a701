package simulation

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/simulation/oracle"
)

var (
	seed   = flag.Uint64("seed", 1, "the first seed")
	seeds  = flag.Int("seeds", 0, "the number of seeds; 0: as many as fit into -time")
	limit  = flag.Duration("time", 20*time.Second, "the real time for all seeds, if -seeds is 0")
	keepOn = flag.Bool("keep-on", false, "do not stop at the first failing seed")
	trace  = flag.Bool("log", false, "log what happens, in virtual time")
)

func TestSimulation(t *testing.T) {
	keys, err := newPKI()
	if err != nil {
		t.Fatal(err)
	}

	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))

	began, n := time.Now(), 0
	for s := *seed; *seeds > 0 && n < *seeds || *seeds == 0 && time.Since(began) < *limit; s++ {
		n++

		if play(t, draw(s), keys) && !*keepOn {
			break
		}
	}

	took := time.Since(began)
	t.Logf("%d schedules in %s, %.0f a minute", n, took.Round(time.Millisecond), float64(n)/took.Minutes())
}

// play runs one plan, and reports whether the oracle found something.
func play(t *testing.T, plan *Plan, keys *pki) bool {
	t.Helper()

	var (
		found []oracle.Violation
		story story
	)

	synctest.Test(t, func(t *testing.T) {
		t.Helper()

		found = newWorld(plan, keys, story.add).run()
	})

	if *trace {
		t.Log(story.String())
	}

	if len(found) == 0 {
		return false
	}

	t.Errorf("run it alone with -seed %d -seeds 1 -log -v, log in %s\n%s\n%s",
		plan.Seed, story.save(t, plan.Seed), oracle.String(found), plan)

	return true
}

// story is what happened, in virtual time.
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

// save keeps the story: the order of goroutines may differ when a seed runs again.
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
