package machine

import "syscall"

// OwnGroup keeps Ctrl-C from a child process, which ends gracefully later. The kernel kills the
// child when this process is killed.
func OwnGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
