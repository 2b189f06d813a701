package scale

import (
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"
)

// dialToFill is longer than a connection to this machine takes.
const dialToFill = 500 * time.Millisecond

// blackHole returns an address of this machine that answers no SYN, as that of a cluster that is
// gone: the queue of its listener is full.
func blackHole(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	bound, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", bound.(*syscall.SockaddrInet4).Port)
	for full := false; !full; {
		connected, err := (&net.Dialer{Timeout: dialToFill}).DialContext(t.Context(), "tcp", address)
		if full = err != nil; !full {
			t.Cleanup(func() { _ = connected.Close() })
		}
	}
	return address
}
