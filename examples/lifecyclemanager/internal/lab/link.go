package lab

import (
	"context"
	"net"
	"strings"
	"sync"
)

// link is the way from the operator to the API server of a runtime. It can be cut.
type link struct {
	// address is the near end, and server the API server.
	address, server string

	mu sync.Mutex
	// cut ends the forwarder. It is nil while the link is cut.
	cut func()
}

func newLink(server string) (*link, error) {
	address, err := freeAddress(context.Background())
	if err != nil {
		return nil, err
	}
	k := &link{address: address, server: strings.TrimSuffix(strings.TrimPrefix(server, "https://"), "/")}
	err = k.restore()
	return k, err
}

// restore takes connections until the link is cut.
func (k *link) restore() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	socket, err := new(net.ListenConfig).Listen(ctx, "tcp", k.address)
	if err != nil {
		cancel()
		return err
	}
	forwards := &forwarder{dial: func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", k.server)
	}}
	forwards.work.Go(func() { forwards.serve(ctx, socket) })
	k.cut = func() {
		cancel()
		_ = socket.Close()
		forwards.work.Wait()
	}
	return nil
}

// end cuts the link, unless it is cut.
func (k *link) end() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cut != nil {
		k.cut()
	}
	k.cut = nil
	return nil
}

// Cut closes all connections of the operator to the runtime. New ones are refused.
func (r *Runtime) Cut() { _ = r.link.end() }

// Restore ends [Runtime.Cut].
func (r *Runtime) Restore() error { return r.link.restore() }
