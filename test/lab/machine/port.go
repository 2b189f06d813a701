package machine

import (
	"context"
	"net"
	"strconv"
)

// FreeAddress returns an address without listener, which no connection of this machine gets until
// this process ends.
func FreeAddress(context.Context) (string, error) {
	_, port, err := ReservePort()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}
