//go:build !unix

package httpserver

import (
	"errors"
	"net"
	"syscall"
	"time"
)

// socketOf is not known on this system.
func socketOf(net.Conn) syscall.RawConn { return nil }

// departed is not known on this system.
func departed(net.Conn) bool { return false }

// awaitData is not known on this system.
func awaitData(syscall.RawConn) error { return errors.ErrUnsupported }

// boundSilence is not known on this system.
func boundSilence(net.Conn, time.Duration) {}
