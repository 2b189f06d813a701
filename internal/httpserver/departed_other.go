//go:build !unix

package httpserver

import "net"

// departed is not known on this system.
func departed(net.Conn) bool { return false }
