package main

import "syscall"

// ownGroup keeps Ctrl-C from a child, which is ended in good order instead; and when this process is killed, the system kills the child.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
