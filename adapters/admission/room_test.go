package admission_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
)

// padded returns a review of that many bytes.
func padded(t *testing.T, size int) []byte {
	t.Helper()

	review := update(t, widget("", `"spec":{"a":1}`), widget("", `"spec":{"a":2}`))

	return append(review, bytes.Repeat([]byte(" "), size-len(review))...)
}

// slow is a body whose second half comes when it is let go.
func slow(ctx context.Context, whole []byte, rest <-chan struct{}) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/validate/kyma", io.MultiReader(bytes.NewReader(whole[:len(whole)/2]),
		readerFunc(func([]byte) (int, error) {
			<-rest

			return 0, io.EOF
		}), bytes.NewReader(whole[len(whole)/2:])))
	r.ContentLength = int64(len(whole))
	r.Header.Set("Content-Type", "application/json")

	return r
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// All bodies in memory share a room. Who finds none waits a little, and small ones need none.
func TestRoomForBodies(t *testing.T) {
	t.Parallel()

	const large, small = 300 << 10, 60 << 10

	const seen, unread = "accepted", "unread"

	tests := []struct {
		name    string
		held    int           // bytes of the body that fills the room
		unknown bool          // its length is not announced
		freed   time.Duration // when that one ends
		size    int           // of the next
		want    string        // the decision
		after   time.Duration
	}{
		{"small", large, false, time.Second, small, seen, 0},
		{"large, without room", large, false, time.Second, large, unread, 250 * time.Millisecond},
		{"large, with room in time", large, false, 100 * time.Millisecond, large, seen, 100 * time.Millisecond},
		{"large, beside one that is not", 100 << 10, false, time.Second, large, seen, 0},
		{"large, beside one of any size", small, true, time.Second, large, unread, 250 * time.Millisecond},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				inbox := newInbox()
				h := newHandler(t, inbox, admission.Options{MaxBody: 400 << 10, MaxBodies: 400 << 10})
				rest, ended := make(chan struct{}), make(chan int)

				go func() {
					w, r := httptest.NewRecorder(), slow(t.Context(), padded(t, test.held), rest)
					if test.unknown {
						r.ContentLength = -1
					}

					h.ServeHTTP(w, r)

					ended <- w.Code
				}()

				synctest.Wait()
				time.AfterFunc(test.freed, func() { close(rest) })

				started := time.Now()
				w := httptest.NewRecorder()
				done := make(chan struct{})
				close(done)
				h.ServeHTTP(w, slow(t.Context(), padded(t, test.size), done))

				if answer := w.Body.String(); w.Code != http.StatusOK || !strings.Contains(answer, `"allowed":true`) ||
					!strings.Contains(answer, `"message":"`+test.want+`:`) || !strings.Contains(answer, `"uid":"`+string(testUID)+`"`) {
					t.Errorf("answer %d %s, want %s allowed, and %s", w.Code, answer, testUID, test.want)
				}

				if took := time.Since(started); took != test.after {
					t.Errorf("answered after %v, want %v", took, test.after)
				}

				// What stands in for a change that nobody read.
				if resyncs := inbox.resyncs(); resyncs != (test.want == unread) {
					t.Errorf("a resync: %v, want it for what was not read only", resyncs)
				}

				if code := <-ended; code != http.StatusOK {
					t.Errorf("the other is answered %d, want 200", code)
				}
			})
		})
	}
}

// An API server that has given up meanwhile goes on with the write: what it sent counts.
func TestAbandonedReviewCounts(t *testing.T) {
	t.Parallel()

	gone, cancel := context.WithCancel(t.Context())
	cancel()

	whole := make(chan struct{})
	close(whole)

	for name, size := range map[string]int{"small": 4 << 10, "large": 100 << 10} {
		inbox := newInbox()
		h := newHandler(t, inbox, admission.Options{})
		h.ServeHTTP(httptest.NewRecorder(), slow(gone, padded(t, size), whole))

		if len(inbox.events) != 1 || inbox.events[0].Resync {
			t.Errorf("%s: events %v, want the change", name, inbox.events)
		}
	}
}

// Who is gone waits no longer. A resync stands in.
func TestRoomIsNotAwaitedForNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inbox := newInbox()
		h := newHandler(t, inbox, admission.Options{MaxBody: 400 << 10, MaxBodies: 400 << 10})
		ctx, cancel := context.WithCancel(t.Context())
		rest, ended := make(chan struct{}), make(chan struct{})

		go func() {
			h.ServeHTTP(httptest.NewRecorder(), slow(t.Context(), padded(t, 400<<10), rest))
			close(ended)
		}()

		synctest.Wait()
		cancel()

		started := time.Now()
		h.ServeHTTP(httptest.NewRecorder(), slow(ctx, padded(t, 100<<10), rest))

		if took := time.Since(started); took != 0 {
			t.Errorf("waited for %v", took)
		}

		if !inbox.resyncs() {
			t.Error("no resync, although nobody read it")
		}

		close(rest)
		<-ended
	})
}
