package lab

import (
	"crypto/x509"
	"net"
	"strconv"
	"syscall"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

func loopback() []net.IP { return []net.IP{net.IPv4(127, 0, 0, 1)} }

// BothUsages are those of the certificate of an agent, which is shown to the control plane and to
// API servers.
func BothUsages() []x509.ExtKeyUsage {
	return []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
}

// FreePort returns a port of the loopback interface without listener, which no connection of this
// machine gets until the test ends. So a process of the test may close it and open it again.
func FreePort(t testing.TB) int {
	t.Helper()
	holder, port, err := machine.ReservePort()
	NoError(t, err)
	t.Cleanup(func() { _ = syscall.Close(holder) }) // It was bound only.
	return port
}

// Address returns the loopback address with a port.
func Address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
