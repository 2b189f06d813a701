package lab

import "syscall"

// ownGroup keeps Ctrl-C from a child process, which ends gracefully later. The kernel kills the
// child when this process is killed.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
