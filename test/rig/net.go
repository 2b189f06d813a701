package rig

import (
	"crypto/x509"
	"net"
	"strconv"
	"testing"
)

func loopback() []net.IP { return []net.IP{net.IPv4(127, 0, 0, 1)} }

func bothUsages() []x509.ExtKeyUsage {
	return []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
}

// FreePort returns a port of the loopback interface that nobody listens on at the moment.
func FreePort(t testing.TB) int {
	t.Helper()

	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // It was only asked for its port.

	address, _ := l.Addr().(*net.TCPAddr)

	return address.Port
}

// Address returns the loopback address with a port.
func Address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
