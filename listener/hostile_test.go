package listener_test

import (
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// largest returns a heartbeat in which everything is as large as the contract allows.
func largest(source core.RuntimeID, epoch int) core.Batch {
	long := func(n int) string { return fmt.Sprintf("%0512d", n) }
	beat := &core.Heartbeat{
		ID: "id", Number: 1, Interval: time.Hour, Instance: long(epoch), Version: long(1), CertificateFingerprint: long(2),
		KeyMaterialError: long(3), ConfigHash: long(4), Canary: core.CanaryAlive, Dropped: map[string]int64{},
	}
	for n := range 64 {
		beat.CAFingerprints = append(beat.CAFingerprints, long(n))
		beat.Dropped[fmt.Sprintf("%064d", n)] = 1
	}
	return core.Batch{Source: source, Epoch: long(epoch), Heartbeat: beat}
}

// A hostile runtime takes at most 64 KiB for each manager. The test does not run beside others, as
// it measures the memory of the process.
func TestHostileRuntimeTakesLittleMemory(t *testing.T) {
	const hostile, epochs, most = 32, 24, 64 << 10
	watched := newFleet(t, fleet.Options{})
	l := newListener(t, listener.PeersFunc(named), listener.InsecureAllowAll(), &recorder{}, listener.Options{Fleet: watched})
	before := heap()
	for n := range hostile {
		id := core.RuntimeID(fmt.Sprintf("hostile-%d", n))
		for epoch := range epochs {
			// A query fills the header. The path shares the memory of the request line.
			r := batchFrom(t, id, largest(id, epoch))
			r.URL = must(url.ParseRequestURI(r.URL.Path + "?" + strings.Repeat("q", 60<<10)))(t)
			if w := serve(l, r); w.Code != http.StatusAccepted {
				t.Fatalf("heartbeat is answered %d %s", w.Code, w.Body)
			}
		}
	}
	each := (heap() - before) / hostile
	t.Logf("%d bytes for each hostile runtime", each)
	if each > most {
		t.Errorf("a hostile runtime takes %d bytes, want at most %d", each, most)
	}
	runtime.KeepAlive(watched)
	runtime.KeepAlive(l)
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // The first one moves pools to where the second one empties them.
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
