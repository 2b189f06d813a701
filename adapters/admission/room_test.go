package admission_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// padded returns a review of that many bytes.
func padded(t *testing.T, size int) []byte {
	t.Helper()
	review := update(t, widget("", `"spec":{"a":1}`), widget("", `"spec":{"a":2}`))
	return append(review, bytes.Repeat([]byte(" "), size-len(review))...)
}

// slow returns a request from an address. Its length is announced. The first part of its body
// arrives immediately, and the rest when the test releases it.
func slow(ctx context.Context, from string, whole []byte, part int, rest <-chan struct{}) *http.Request {
	r := request("/validate/kyma", io.MultiReader(bytes.NewReader(whole[:part]), readerFunc(func([]byte) (int, error) {
		<-rest
		return 0, io.EOF
	}), bytes.NewReader(whole[part:])))
	r.ContentLength = int64(len(whole))
	r.RemoteAddr = net.JoinHostPort(from, "4711")

	return r.WithContext(ctx)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

const apiServer, stranger = "10.0.0.1", "10.0.0.66"

// Room is charged for bytes that have arrived. An origin gets four fifths of the bytes that others
// leave.
func TestRoomForBodies(t *testing.T) {
	t.Parallel()

	const kb, total = 1 << 10, 400 << 10
	const seen, unread = "accepted", "unread"
	type held struct {
		from         string
		size, part   int
		freed        time.Duration
		bodiesOfThis int
	}

	tests := []struct {
		name  string
		held  []held
		size  int
		want  string
		after time.Duration
	}{
		{"nothing is held", nil, 390 * kb, seen, 0},
		{"announced and silent", []held{{stranger, 390 * kb, 1, time.Second, 20}}, 200 * kb, seen, 0},
		{
			"one stranger sends all that is allowed",
			[]held{{stranger, 300 * kb, 299 * kb, time.Second, 3}},
			20 * kb, seen, 0,
		},
		{"no room", []held{{apiServer, 300 * kb, 290 * kb, time.Second, 1}}, 300 * kb, unread, 250 * time.Millisecond},
		{
			"room in time",
			[]held{{apiServer, 300 * kb, 290 * kb, 100 * time.Millisecond, 1}},
			300 * kb, seen, 100 * time.Millisecond,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				inbox := newInbox()
				h := newHandler(t, inbox, admission.Options{MaxBody: total, MaxBodies: total})
				var holders sync.WaitGroup

				for _, held := range test.held {
					rest := make(chan struct{})
					time.AfterFunc(held.freed, func() { close(rest) })

					for range held.bodiesOfThis {
						holders.Go(func() {
							h.ServeHTTP(httptest.NewRecorder(), slow(t.Context(), held.from, padded(t, held.size),
								held.part, rest))
						})
					}

					synctest.Wait()
				}

				started := time.Now()
				w := httptest.NewRecorder()
				done := make(chan struct{})
				close(done)
				h.ServeHTTP(w, slow(t.Context(), apiServer, padded(t, test.size), test.size/2, done))

				if answer := w.Body.String(); w.Code != http.StatusOK || !strings.Contains(answer, `"allowed":true`) ||
					!strings.Contains(answer, `"message":"`+test.want+`:`) ||
					!strings.Contains(answer, `"uid":"`+string(testUID)+`"`) {
					t.Errorf("answer %d %s, want %s allowed, and %s", w.Code, answer, testUID, test.want)
				}

				if took := time.Since(started); took != test.after {
					t.Errorf("answered after %v, want %v", took, test.after)
				}
				if test.want == unread && !inbox.resyncs() {
					t.Error("no resync stands in for the change that was not read")
				}

				holders.Wait()
			})
		})
	}
}

// Two strangers send all that they may, in the room that an agent has. The API server does not
// wait.
func TestSeveralStrangersLeaveRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const largest = 8 << 20
		h := newHandler(t, newInbox(), admission.Options{MaxBody: largest, MaxBodies: largest + largest/4})
		rest := make(chan struct{})
		whole := padded(t, largest)
		var holders sync.WaitGroup

		for _, from := range []string{stranger, "10.0.0.67"} {
			for _, part := range []int{largest - 1, 3 << 19, 1 << 20, 250 << 10, 30 << 10, 1 << 10} {
				for range 10 {
					holders.Go(func() { h.ServeHTTP(httptest.NewRecorder(), slow(t.Context(), from, whole, part, rest)) })
				}
				time.Sleep(time.Second) // Those that found no room have given up.
			}
		}

		started := time.Now()
		done := make(chan struct{})
		close(done)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, slow(t.Context(), apiServer, padded(t, 100<<10), 50<<10, done))
		if took := time.Since(started); took != 0 || !strings.Contains(w.Body.String(), `"message":"accepted:`) {
			t.Errorf("answer %s after %v, want an accepted change at once", w.Body, took)
		}

		close(rest)
		holders.Wait()
	})
}

// A write is committed after its answer, so a reconcile before it would read the former object.
func TestResyncIsAcceptedAfterTheAnswer(t *testing.T) {
	t.Parallel()

	w := httptest.NewRecorder()
	accepted := false
	h := newHandler(t, core.AcceptorFunc(func(_ core.Manager, event core.WatchEvent) core.Outcome {
		accepted = event.Resync
		if w.Body.Len() == 0 || !w.Flushed {
			t.Errorf("accepted %+v before the answer was sent", event)
		}
		return core.Accepted
	}), admission.Options{})

	h.ServeHTTP(w, request("/validate/kyma", strings.NewReader("no review")))
	if !accepted {
		t.Error("no resync stands in for a review that cannot be parsed")
	}
}

// An API server that has given up continues with the write, so its event must be accepted.
func TestAbandonedReviewCounts(t *testing.T) {
	t.Parallel()

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	whole := make(chan struct{})
	close(whole)

	for name, size := range map[string]int{"small": 4 << 10, "large": 100 << 10} {
		inbox := newInbox()
		h := newHandler(t, inbox, admission.Options{})
		h.ServeHTTP(httptest.NewRecorder(), slow(gone, apiServer, padded(t, size), size/2, whole))

		if len(inbox.events) != 1 || inbox.events[0].Resync {
			t.Errorf("%s: events %v, want the change", name, inbox.events)
		}
	}
}

// A client that has disconnected waits for no memory. A resync is accepted instead.
func TestDisconnectedClientWaitsForNoRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inbox := newInbox()
		h := newHandler(t, inbox, admission.Options{MaxBody: 400 << 10, MaxBodies: 400 << 10})
		ctx, cancel := context.WithCancel(t.Context())
		rest := make(chan struct{})
		ended := make(chan struct{})
		go func() {
			h.ServeHTTP(httptest.NewRecorder(), slow(t.Context(), apiServer, padded(t, 400<<10), 399<<10, rest))
			close(ended)
		}()

		synctest.Wait()
		cancel()
		started := time.Now()
		h.ServeHTTP(httptest.NewRecorder(), slow(ctx, apiServer, padded(t, 100<<10), 50<<10, rest))
		if took := time.Since(started); took != 0 {
			t.Errorf("waited for %v", took)
		}
		if !inbox.resyncs() {
			t.Error("no resync for a review that was not read")
		}

		close(rest)
		<-ended
	})
}

// The buffer of a large body is garbage after its release. Until the collector has freed it, it
// counts as memory of bodies. The test runs alone, as it measures the process.
func TestGarbageTakesRoom(t *testing.T) {
	const largest, room, reviews = 8 << 20, 10 << 20, 8
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // The handler alone collects.
	for name, announced := range map[string]int64{"announced": largest, "of unknown length": -1} {
		h := newHandler(t, newInbox(), admission.Options{MaxBody: largest, MaxBodies: room})
		whole := padded(t, largest)
		all := make(chan struct{})
		close(all)
		runtime.GC()
		before := heap()
		most := uint64(0)

		for range reviews {
			r := slow(t.Context(), apiServer, whole, largest/2, all)
			w := httptest.NewRecorder()
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

// Buffers that are kept for the next body take room, too. Bodies of one size after the other would
// leave one room of each size. The test runs alone, as it measures the process.
func TestKeptBuffersTakeRoom(t *testing.T) {
	const largest, room = 8 << 20, 12 << 20
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // The handler alone collects.

	h := newHandler(t, newInbox(), admission.Options{MaxBody: largest, MaxBodies: room})
	whole := padded(t, largest)
	runtime.GC()
	before := heap()
	most := uint64(0)

	for _, size := range []int{200 << 10, 400 << 10, 900 << 10, 1400 << 10, 1900 << 10, largest} {
		rest := make(chan struct{})
		var arrived, all sync.WaitGroup

		for n := range min(room/size, 40) {
			arrived.Add(1)
			all.Go(func() {
				// Each body is read to this place: without room, it is skipped.
				r := slow(t.Context(), "10.0.0."+strconv.Itoa(n), whole[:size], size-1, rest)
				r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(whole[:size-1]), readerFunc(func([]byte) (int, error) {
					arrived.Done()
					<-rest
					return 0, io.EOF
				}), strings.NewReader(" ")))

				h.ServeHTTP(httptest.NewRecorder(), r)
			})
		}

		arrived.Wait()
		close(rest)
		all.Wait()
		most = max(most, heap()-before)
	}

	const others = 4 << 20
	if most > room+others {
		t.Errorf("%d MiB of memory for bodies, want at most %d", most>>20, (room+others)>>20)
	}
}

// Many bodies of all sizes share a small room: each is answered, and in the end none holds memory.
func TestManyBodiesShareTheRoom(t *testing.T) {
	t.Parallel()

	const largest = 1 << 20
	h := newHandler(t, newInbox(), admission.Options{MaxBody: largest, MaxBodies: 2 * largest})
	whole := padded(t, largest)
	at := make(chan struct{})
	close(at)
	var all sync.WaitGroup

	for n := range 8 {
		all.Go(func() {
			for round := range 50 {
				size := min(3<<10<<((n+round)%9), largest)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, slow(t.Context(), "10.0.0."+strconv.Itoa(n), whole[:size], size/2, at))
				if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"allowed":true`) {
					t.Errorf("%d bytes: answer %d %s, want an allowed review", size, w.Code, w.Body)
				}
			}
		})
	}

	all.Wait()

	w := httptest.NewRecorder()
	h.ServeHTTP(w, slow(t.Context(), stranger, whole, largest/2, at))
	if !strings.Contains(w.Body.String(), `"message":"accepted:`) {
		t.Errorf("answer %s, want an accepted change: all room is free", w.Body)
	}
}

// heap returns the bytes that the collector has not freed.
func heap() uint64 {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return memory.HeapAlloc
}
