//go:build unix && !linux

package machine

import "net"

// ReservePort returns a port on which nothing listens. Here it has no holder, so another process may
// get it.
func ReservePort() (holder, port int, err error) {
	socket, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return -1, 0, err
	}
	own, _ := socket.Addr().(*net.TCPAddr) // It listens on one.
	return -1, own.Port, socket.Close()
}
