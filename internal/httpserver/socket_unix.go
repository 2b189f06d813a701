//go:build unix

package httpserver

import (
	"errors"
	"net"
	"runtime"
	"syscall"
	"time"
)

func socketOf(c net.Conn) syscall.RawConn {
	withSocket, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}

	socket, err := withSocket.SyscallConn()
	if err != nil {
		return nil
	}
	return socket
}

// peek reads a byte without removing it, and does not block.
func peek(fd uintptr) (n int, err error) {
	n, _, err = syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return n, err
}

// departed reports whether the other end has closed or reset a connection from which all data was
// read. It does not block. It is false for a connection without a socket.
func departed(c net.Conn) bool {
	socket := socketOf(c)
	if socket == nil {
		return false
	}

	var (
		n       int
		peekErr error
	)
	err := socket.Control(func(fd uintptr) { n, peekErr = peek(fd) })
	if err != nil {
		return false
	}

	isClosed := peekErr == nil && n == 0
	return isClosed || errors.Is(peekErr, syscall.ECONNRESET)
}

// awaitData blocks until a read of the socket would not, or until the deadline of its connection.
func awaitData(socket syscall.RawConn) error {
	return socket.Read(func(fd uintptr) bool {
		_, err := peek(fd)
		return !errors.Is(err, syscall.EAGAIN)
	})
}

// boundSilence bounds the time for which sent data may lack an acknowledgement (RFC 5482). Only
// Linux has the option.
func boundSilence(c net.Conn, most time.Duration) {
	const tcpUserTimeout = 18 // of linux/tcp.h
	socket := socketOf(c)
	if socket == nil || runtime.GOOS != "linux" {
		return
	}

	_ = socket.Control(func(fd uintptr) { // It fails for a closed connection.
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(most.Milliseconds()))
	})
}
