package httpserver

import (
	"net/http"
	"syscall"
	"testing"
)

// TCP finds out that the path to a known client is cut, also while an answer is under way.
func TestProbes(t *testing.T) {
	t.Parallel()

	var before, after [4]int
	read := func(r *http.Request) (have [4]int) {
		_ = socketOf(connFrom(r.Context()).Conn).Control(func(fd uintptr) {
			for i, option := range []int{syscall.TCP_KEEPIDLE, syscall.TCP_KEEPINTVL, syscall.TCP_KEEPCNT, 18} {
				have[i], _ = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, option)
			}
		})

		return have
	}

	r := run(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		before = read(r)
		SetOrigin(r.Context(), "runtime a")
		after = read(r)
	}), Options{})
	if _, err := r.get(t, newClient(t, nil)); err != nil {
		t.Fatal(err)
	}
	if want := [4]int{10, 5, 3, 25_000}; after != want || before == want {
		t.Errorf("options %v, want %v, and others before the client is known, not %v", after, want, before)
	}
}
