//go:build !unix

package httpserver

import (
	"errors"
	"net"
	"syscall"
	"time"
)

// socketOf and the functions below are stubs for systems other than Unix.
func socketOf(net.Conn) syscall.RawConn { return nil }

func departed(net.Conn) bool { return false }

func awaitData(syscall.RawConn) error { return errors.ErrUnsupported }

func boundSilence(net.Conn, time.Duration) {}
