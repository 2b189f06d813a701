//go:build unix && !linux

package main

import "syscall"

// ownGroup keeps Ctrl-C from a child, which is ended in good order instead.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
