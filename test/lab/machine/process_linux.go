package machine

import "syscall"

// OwnGroup keeps Ctrl-C from a child process, which ends gracefully later. The kernel kills the
// child when this process is killed.
func OwnGroup() *syscall.SysProcAttr { return OwnGroupEnding(syscall.SIGKILL) }

// OwnGroupEnding is OwnGroup with another signal of the kernel.
func OwnGroupEnding(signal syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: signal}
}
