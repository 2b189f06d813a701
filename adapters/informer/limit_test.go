package informer_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/runtime-watcher/runtime-watcher/adapters/informer"
)

// stubborn is an API server that answers some requests in a way of its own.
type stubborn struct {
	*server

	// answers writes the body of a request, and reports whether it is one of those. The body ends when
	// it returns.
	answers func(r *http.Request, send func(event)) (own bool)
}

func (b *stubborn) RoundTrip(r *http.Request) (*http.Response, error) {
	body, out := io.Pipe()
	decided := make(chan bool)
	send := json.NewEncoder(out)
	go func() {
		// The first call of send, or the return, decides.
		told := false
		tell := func(own bool) {
			if !told {
				told = true
				decided <- own
			}
		}

		tell(b.answers(r, func(e event) {
			tell(true)
			_ = send.Encode(e) // It fails when the source has gone.
		}))
		_ = out.Close()
	}()

	if !<-decided {
		return b.server.RoundTrip(r)
	}

	b.note(r.URL.Path + " OWN " + r.URL.Query().Encode())
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: r,
	}, nil
}

func (b *stubborn) start(s *scene) {
	s.t.Helper()
	s.startAt(&rest.Config{Host: "http://api.example.com", Transport: b}, informer.Options{}, widgets())
}

// A streaming list that never ends is named, and the objects are listed the other way: whatever the
// API server sends in it, and however soon it ends the request.
func TestStreamingListWithoutEnd(t *testing.T) {
	added := func() event { return event{Type: "ADDED", Object: newObject("a", 1, 1)} }
	for name, list := range map[string]func(r *http.Request, send func(event)){
		"silence":     func(r *http.Request, send func(event)) { send(added()); <-r.Context().Done() },
		"ends soon":   func(_ *http.Request, send func(event)) { send(added()); <-time.After(10 * time.Second) },
		"ends at 5 m": func(r *http.Request, send func(event)) { send(added()); wait(r, 5*time.Minute) },
		"bookmarks": func(r *http.Request, send func(event)) {
			for wait(r, 10*time.Second) {
				send(event{Type: "BOOKMARK", Object: newObject("", 0, 1)})
			}
		},
		"changes": func(r *http.Request, send func(event)) {
			for wait(r, 10*time.Second) {
				send(event{Type: "MODIFIED", Object: newObject("a", 1, 1)})
			}
		},
		"new objects": func(r *http.Request, send func(event)) {
			for wait(r, 10*time.Second) {
				send(added())
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(s *scene) {
				s.server.put("widgets", newObject("a", 1, 1))
				b := &stubborn{server: s.server, answers: func(r *http.Request, send func(event)) bool {
					own := r.URL.Query().Get("sendInitialEvents") == "true"
					if own {
						list(r, send)
					}
					return own
				}}

				b.start(s)
				time.Sleep(20 * time.Minute)
				synctest.Wait()

				if s.failures["endless_list"] != 1 {
					t.Errorf("failures %v, want one for the endless list", s.failures)
				}
				if err := s.source.Ready(); err != nil || s.source.Problem(manager) != "" {
					t.Errorf("Ready = %v, problem %q, want none once the objects are listed", err, s.source.Problem(manager))
				}

				s.server.put("widgets", newObject("b", 1, 1))
				time.Sleep(time.Minute)
				synctest.Wait()
				s.mu.Lock()
				defer s.mu.Unlock()

				if got := strings.Join(s.offered, " "); !strings.Contains(got, "b") {
					t.Errorf("events %q, want the one of an object that came later", got)
				}
				if n := len(s.server.requested(" OWN ")); n > 2 {
					t.Errorf("%d streaming lists, want no more once the objects are listed the other way", n)
				}
			})
		})
	}
}

// An ordinary list may hang, too. It is named, and tried again.
func TestListWithoutEnd(t *testing.T) {
	inBubble(t, func(s *scene) {
		var hangs atomic.Bool
		hangs.Store(true)
		b := &stubborn{server: s.server, answers: func(r *http.Request, _ func(event)) bool {
			q := r.URL.Query()
			switch {
			case q.Get("sendInitialEvents") == "true": // It is refused below, as by an older server.
				return true
			case hangs.Load() && strings.Contains(r.URL.Path, "widgets") && q.Get("watch") == "":
				<-r.Context().Done()
				return true
			default:
				return false
			}
		}}

		b.start(s)
		time.Sleep(5 * time.Minute)
		synctest.Wait()

		if problem := s.source.Problem(manager); problem == "" || s.source.Ready() == nil {
			t.Errorf("problem %q, Ready %v, want both to name the list", problem, s.source.Ready())
		}

		hangs.Store(false)
		time.Sleep(5 * time.Minute)
		synctest.Wait()

		if err := s.source.Ready(); err != nil {
			t.Errorf("Ready = %v after the lists end again", err)
		}
	})
}

// wait reports whether the time passed before the end of a request.
func wait(r *http.Request, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-r.Context().Done():
		return false
	}
}
