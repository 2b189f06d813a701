package simulation

import (
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
)

// share runs the seeds in several processes of this program, as each of them has one processor.
func share(t *testing.T) {
	t.Helper()

	var running sync.WaitGroup

	each := (*seeds + *workers - 1) / *workers
	for i := range *workers {
		running.Go(func() { work(t, *seed+uint64(i*each), each) })
	}

	running.Wait()
}

func work(t *testing.T, first uint64, n int) {
	t.Helper()

	worker := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSimulation$", "-test.v", "-test.timeout=0",
		"-seed", strconv.FormatUint(first, 10), "-seeds", strconv.Itoa(n), "-for", limit.String(),
		"-keep-on="+strconv.FormatBool(*keepOn))

	out, err := worker.CombinedOutput()
	if err != nil {
		t.Errorf("seeds from %d on: %v", first, err)
	}

	t.Logf("seeds from %d on:\n%s", first, out)
}
