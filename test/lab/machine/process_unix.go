//go:build unix && !linux

package machine

import "syscall"

// OwnGroup keeps Ctrl-C from a child process, which ends gracefully later.
func OwnGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// OwnGroupEnding is OwnGroup: here no signal ends the child with this process.
func OwnGroupEnding(syscall.Signal) *syscall.SysProcAttr { return OwnGroup() }
