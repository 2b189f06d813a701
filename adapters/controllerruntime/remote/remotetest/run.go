package remotetest

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
)

// The bounds of one reconcile of a hostile cluster. The API server of the test is in the same
// process, so its part counts, too.
const (
	MostMemory = 64 << 20        // bytes
	MostTime   = 5 * time.Second // of a processor
	MostLog    = 64 << 10        // bytes
	MostWait   = 2 * time.Minute // for a reconcile of a cluster that does not answer
	mostKept   = mega
)

// Cost is the cost of one reconcile.
type Cost struct {
	Memory uint64        // bytes of the heap, at most at a time
	Time   time.Duration // of a processor
	Took   time.Duration
	Log    int // bytes of log lines of the logger in the context
}

// Measure calls reconcile with a context that has a logger and returns the cost.
func Measure(ctx context.Context, reconcile func(ctx context.Context) error) (took Cost, err error) {
	var logged bytes.Buffer
	logger := logr.FromSlogHandler(slog.NewTextHandler(&logged, nil))
	before := Heap()
	busy := processorTime()
	begun := time.Now()
	peak := make(chan uint64)
	stop := make(chan struct{})
	go func() { peak <- peakUntil(stop) }()

	err = reconcile(logf.IntoContext(ctx, logger))
	if err != nil {
		logger.Error(err, "Reconciler error") // As the controller does.
	}

	close(stop)
	return Cost{
		Memory: max(<-peak, before) - before, Time: processorTime() - busy, Took: time.Since(begun), Log: logged.Len(),
	}, err
}

// Check fails a test if the reconcile cost more than the bounds.
func (c Cost) Check(t testing.TB) {
	t.Helper()
	isSlow := c.Time > MostTime || c.Took > MostWait
	isLarge := c.Memory > MostMemory || c.Log > MostLog
	if isSlow || isLarge {
		t.Errorf("it took %d MiB, %v of a processor, %v, and %d kB of log", c.Memory>>20, c.Time, c.Took, c.Log>>10)
	}
}

// Run starts a server for each attack, and an operator with its kubeconfig. The function reconcile
// runs one reconcile of the operator, which must read from the cluster at least once, and returns
// its error. Run fails if the reconcile of the honest server fails before or after the attack, or
// if a reconcile costs more than the bounds. With -short, slow attacks are skipped.
func Run(t *testing.T, start func(t *testing.T, server *Server) (reconcile func(ctx context.Context) error)) {
	t.Helper()
	for _, attack := range Attacks() {
		t.Run(attack.Name, func(t *testing.T) {
			if attack.Slow && testing.Short() {
				t.Skip("takes as long as the bounds allow")
			}
			server := NewServer(t)
			reconcile := start(t, server)
			// Control: without the attack, the cluster is reconciled.
			if err := reconcile(t.Context()); err != nil {
				t.Fatalf("control: %v", err)
			}
			kept := Heap()
			server.SetSpoil(attack.Spoil)
			rounds := 3
			if attack.Slow {
				rounds = 1
			}
			for range rounds {
				arrived := server.Arrived()
				took, err := Measure(t.Context(), reconcile)
				t.Logf("%d answers: %d KiB, %v of a processor, %v, %d bytes of log: %.250v",
					server.Arrived()-arrived, took.Memory>>10, took.Time, took.Took, took.Log, err)
				if server.Arrived() == arrived {
					t.Error("no hostile answer has arrived")
				}
				took.Check(t)
			}

			server.SetSpoil(nil)
			if err := reconcile(t.Context()); err != nil {
				t.Errorf("after the attack: %v", err)
			}
			CheckKept(t, kept)
		})
	}
}

// CheckKept fails a test if more memory is in use than before, apart from closing connections.
func CheckKept(t testing.TB, before uint64) {
	t.Helper()
	after := Heap()
	for n := 0; n < 100 && after > before+mostKept; n++ {
		after = Heap()
	}
	if after > before+mostKept {
		t.Errorf("%d KiB are kept for the cluster", (after-before)>>10)
	}
}

// Heap returns the size of live objects in bytes.
func Heap() uint64 {
	runtime.GC()
	runtime.GC() // Pools are emptied by the second one.
	return heapNow()
}

func heapNow() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

func peakUntil(stop <-chan struct{}) (peak uint64) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return peak
		case <-tick.C:
			peak = max(peak, heapNow())
		}
	}
}

// processorTime is a tenth with the race detector, which takes five to ten times as much.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}

	took := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	race := debug.BuildSetting{Key: "-race", Value: "true"}
	if info, _ := debug.ReadBuildInfo(); slices.Contains(info.Settings, race) {
		took /= 10
	}
	return took
}
