package lab_test

import (
	"net"
	"strconv"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

func TestFreePortsAreDistinctAndStayFree(t *testing.T) {
	seen := make(map[int]bool)
	for range 200 {
		port := lab.FreePort(t)
		if seen[port] {
			t.Fatalf("port %d was given twice", port)
		}
		seen[port] = true
		// Twice, on one address and on all, because a process may close its port and open it again.
		for _, host := range []string{"127.0.0.1", ""} {
			l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
			lab.NoError(t, err)
			lab.NoError(t, l.Close())
		}
	}
}
