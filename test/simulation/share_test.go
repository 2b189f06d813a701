package simulation

import (
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
)

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
