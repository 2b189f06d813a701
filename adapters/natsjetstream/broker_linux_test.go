package natsjetstream_test

import "syscall"

// endWithTests makes the kernel end a process with this one, also after a panic of a test.
func endWithTests() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
