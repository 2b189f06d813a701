//go:build !linux

package natsjetstream_test

import "syscall"

// endWithTests has no effect here: after a panic of a test, the process stays.
func endWithTests() *syscall.SysProcAttr { return nil }
