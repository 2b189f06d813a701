package loss

import (
	"net/http"
	"strconv"
	"sync"
)

// answers stands in for a control plane that accepts no event.
type answers struct {
	mu       sync.Mutex
	fault    Fault
	released chan struct{}
}

func newAnswers() *answers { return &answers{released: make(chan struct{})} }

func (a *answers) set(f Fault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fault, a.released = f, make(chan struct{})
}

// release ends the requests that hang.
func (a *answers) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-a.released:
	default:
		close(a.released)
	}
}

func (a *answers) now() (Fault, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fault, a.released
}

// ServeHTTP answers according to the current fault.
func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fault, released := a.now()
	switch fault.Kind {
	case Hanging:
		select {
		case <-released:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	case TooMany:
		w.Header().Set("Retry-After", strconv.Itoa(1+fault.Strength%3))
		w.WriteHeader(http.StatusTooManyRequests)
	default:
		if fault.Strength%2 == 0 {
			w.Header().Set("Retry-After", strconv.Itoa(1+fault.Strength%3))
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}
