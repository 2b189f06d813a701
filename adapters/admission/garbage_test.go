package admission_test

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
)

// The buffer of a large body is garbage after its release. Until the collector has freed it, it counts as
// memory of bodies. The test runs alone, as it measures the process.
func TestGarbageTakesRoom(t *testing.T) {
	const largest, room, reviews = 8 << 20, 10 << 20, 8
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // The handler alone collects.
	for name, announced := range map[string]int64{"announced": largest, "of unknown length": -1} {
		h := newHandler(t, newInbox(), admission.Options{MaxBody: largest, MaxBodies: room})
		whole, all := padded(t, largest), make(chan struct{})
		close(all)
		runtime.GC()
		before, most := heap(), uint64(0)
		for range reviews {
			r, w := slow(t.Context(), apiServer, whole, largest/2, all), httptest.NewRecorder()
			r.ContentLength = announced
			h.ServeHTTP(w, r)
			if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"message":"accepted:`) {
				t.Errorf("%s: answer %d %s, want an accepted change", name, w.Code, w.Body)
			}
			most = max(most, heap()-before)
		}
		if limit := uint64(2 * room); most > limit {
			t.Errorf("%s: %d MiB of memory for bodies, want at most %d", name, most>>20, limit>>20)
		}
	}
}

// heap returns the bytes that the collector has not freed.
func heap() uint64 {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return memory.HeapAlloc
}
