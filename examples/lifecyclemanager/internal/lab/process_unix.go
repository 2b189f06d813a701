//go:build unix && !linux

package lab

import "syscall"

// ownGroup keeps Ctrl-C from a child process, which ends gracefully later.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
