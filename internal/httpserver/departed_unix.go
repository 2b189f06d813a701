//go:build unix

package httpserver

import (
	"errors"
	"net"
	"syscall"
)

// departed reports whether the other end has closed or reset a connection from which all data was
// read. It does not block. It is false for a connection without a socket.
func departed(c net.Conn) bool {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}

	var (
		n       int
		peekErr error
	)
	err = raw.Control(func(fd uintptr) {
		n, _, peekErr = syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	return err == nil && (errors.Is(peekErr, syscall.ECONNRESET) || peekErr == nil && n == 0)
}
