//go:build unix && !linux

package machine

import (
	"context"
	"net"
)

// FreeAddress returns an address on which nothing listens.
func FreeAddress(ctx context.Context) (string, error) {
	socket, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return socket.Addr().String(), socket.Close()
}
