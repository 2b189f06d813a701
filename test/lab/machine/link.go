package machine

import (
	"context"
	"net"
	"strings"
	"sync"
)

// Link is the way to a server on this machine. It can be cut.
type Link struct {
	// Address is the near end.
	Address string
	server  string

	mu sync.Mutex
	// cut ends the forwarder. It is nil while the link is cut.
	cut func()
}

// NewLink returns a link to an address, or to the host of a URL.
func NewLink(server string) (*Link, error) {
	address, err := FreeAddress(context.Background())
	if err != nil {
		return nil, err
	}
	k := &Link{Address: address, server: strings.TrimSuffix(strings.TrimPrefix(server, "https://"), "/")}
	err = k.Restore()
	return k, err
}

// Restore takes connections until the link is cut.
func (k *Link) Restore() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	socket, err := new(net.ListenConfig).Listen(ctx, "tcp", k.Address)
	if err != nil {
		cancel()
		return err
	}
	forwards := &Forwarder{Dial: func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", k.server)
	}}
	forwards.Start(ctx, socket)
	k.cut = func() {
		cancel()
		_ = socket.Close()
		forwards.Wait()
	}
	return nil
}

// Cut closes all connections, and refuses new ones until [Link.Restore].
func (k *Link) Cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cut != nil {
		k.cut()
	}
	k.cut = nil
}
