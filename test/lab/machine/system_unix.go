//go:build unix && !linux

package machine

import (
	"net"
	"syscall"
)

// OwnGroup keeps Ctrl-C from a child process, which ends gracefully later.
func OwnGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// OwnGroupEnding is OwnGroup: here no signal ends the child with this process.
func OwnGroupEnding(syscall.Signal) *syscall.SysProcAttr { return OwnGroup() }

// ReservePort returns a port on which nothing listens. Here it has no holder, so another process may
// get it.
func ReservePort() (holder, port int, err error) {
	socket, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return -1, 0, err
	}

	own, _ := socket.Addr().(*net.TCPAddr) // It listens on one.
	return -1, own.Port, socket.Close()
}
