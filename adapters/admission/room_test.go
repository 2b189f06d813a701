package admission_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
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

	tests := []struct {
		name    string
		held    int           // bytes of the body that fills the room
		unknown bool          // its length is not announced
		freed   time.Duration // when that one ends
		size    int           // of the next
		code    int
		after   time.Duration
	}{
		{"small", large, false, time.Second, small, http.StatusOK, 0},
		{"large, without room", large, false, time.Second, large, http.StatusServiceUnavailable, 250 * time.Millisecond},
		{"large, with room in time", large, false, 100 * time.Millisecond, large, http.StatusOK, 100 * time.Millisecond},
		{"large, beside one that is not", 100 << 10, false, time.Second, large, http.StatusOK, 0},
		{"large, beside one of any size", small, true, time.Second, large, http.StatusServiceUnavailable, 250 * time.Millisecond},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var refused []string

				h := newHandler(t, newInbox(), admission.Options{
					MaxBody: 400 << 10, MaxBodies: 400 << 10,
					Hooks: admission.Hooks{Refused: func(_ int, reason string, _ time.Duration) { refused = append(refused, reason) }},
				})
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

				if w.Code != test.code || time.Since(started) != test.after || w.Header().Get("Retry-After") != "" {
					t.Errorf("answer %d after %v with %v, want %d after %v, and not that the API server waits",
						w.Code, time.Since(started), w.Header(), test.code, test.after)
				}

				if want := test.code != http.StatusOK; want != (len(refused) == 1 && refused[0] == admission.RefusedBusy) {
					t.Errorf("counted %v, want one that is busy: %v", refused, want)
				}

				if code := <-ended; code != http.StatusOK {
					t.Errorf("the other is answered %d, want 200", code)
				}
			})
		})
	}
}

// Who is gone waits no longer.
func TestRoomIsNotAwaitedForNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, newInbox(), admission.Options{MaxBody: 400 << 10, MaxBodies: 400 << 10})
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

		close(rest)
		<-ended
	})
}
