package lab

import (
	"crypto/x509"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"testing"
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
	holder, port, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(holder) }) // It was bound only.
	return port
}

// reservePort binds a socket that never listens, to all addresses. Others can listen on its port,
// but do not get it by chance.
func reservePort() (holder, port int, err error) {
	holder, err = syscall.Socket(syscall.AF_INET6, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("socket: %w", err)
	}
	if err := syscall.SetsockoptInt(holder, syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, 0); err != nil {
		return 0, 0, fmt.Errorf("IPV6_V6ONLY: %w", err)
	}
	if err := syscall.Bind(holder, new(syscall.SockaddrInet6)); err != nil {
		return 0, 0, fmt.Errorf("bind: %w", err)
	}
	// It comes after the choice of the port, because another test may have reserved one in this
	// way.
	if err := syscall.SetsockoptInt(holder, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, 0, fmt.Errorf("SO_REUSEADDR: %w", err)
	}
	address, err := syscall.Getsockname(holder)
	if err != nil {
		return 0, 0, fmt.Errorf("getsockname: %w", err)
	}
	own, _ := address.(*syscall.SockaddrInet6) // It was bound to one.
	return holder, own.Port, nil
}

// Address returns the loopback address with a port.
func Address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
