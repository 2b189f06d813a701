//go:build !linux

package node

import (
	"errors"
	"net/netip"
	"syscall"
)

func (p *pod) attributes() *syscall.SysProcAttr { return nil }

// enterNamespace fails, as other systems have no network namespaces. Therefore New skips the test.
func enterNamespace([]netip.Addr) (leave func() error, err error) {
	return func() error { return nil }, errors.ErrUnsupported
}
