package machine

import (
	"fmt"
	"syscall"
)

// OwnGroup keeps Ctrl-C from a child process, which ends gracefully later. The kernel kills the
// child when this process is killed.
func OwnGroup() *syscall.SysProcAttr { return OwnGroupEnding(syscall.SIGKILL) }

// OwnGroupEnding is OwnGroup with another signal from the kernel.
func OwnGroupEnding(signal syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: signal}
}

// ReservePort binds a socket that never listens, to all addresses, and returns its file descriptor.
// Others can listen on its port, but do not get it by chance, until the descriptor is closed.
func ReservePort() (holder, port int, err error) {
	holder, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("socket: %w", err)
	}
	if err := syscall.Bind(holder, new(syscall.SockaddrInet4)); err != nil {
		return 0, 0, fmt.Errorf("bind: %w", err)
	}
	// It comes after the choice of the port, because others may have reserved one in this way.
	if err := syscall.SetsockoptInt(holder, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, 0, fmt.Errorf("SO_REUSEADDR: %w", err)
	}

	address, err := syscall.Getsockname(holder)
	if err != nil {
		return 0, 0, fmt.Errorf("getsockname: %w", err)
	}

	own, _ := address.(*syscall.SockaddrInet4) // It was bound to one.
	return holder, own.Port, nil
}
