package node

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
)

// network is a network namespace with nothing but the loopback interface, which has the address of
// the pod. This process makes sockets inside and copies the bytes in both directions.
//
// A namespace belongs to a thread. A thread is kept for it, which also starts the processes of the
// pod. At the end it returns to its first namespace and does not end. When a thread ends, the
// kernel kills the processes that it has started with Pdeathsig, such as cert-manager.
type network struct {
	calls chan func()
	stop  chan struct{}
	ended chan struct{}
}

var errNoNetwork = errors.New("the network of the pod is gone")

func newNetwork(addresses ...netip.Addr) (*network, error) {
	n := &network{calls: make(chan func()), stop: make(chan struct{}), ended: make(chan struct{})}
	ready := make(chan error, 1)
	go func() {
		defer close(n.ended)

		runtime.LockOSThread()
		leave, err := enterNamespace(addresses)
		ready <- err
		n.serve()

		if leave() == nil { // Else the thread must end, as it is in the wrong namespace.
			runtime.UnlockOSThread()
		}
	}()
	if err := <-ready; err != nil {
		n.close()
		return nil, err
	}

	return n, nil
}

func (n *network) serve() {
	for {
		select {
		case call := <-n.calls:
			call()
		case <-n.stop:
			return
		}
	}
}

// close is called once, after the processes that were started inside have ended.
func (n *network) close() {
	close(n.stop)
	<-n.ended
}

// inside runs f in the namespace. It must not block for long: only one runs at a time.
func (n *network) inside(f func() error) error {
	result := make(chan error, 1)
	select {
	case n.calls <- func() { result <- f() }:
		return <-result
	case <-n.stop:
		return errNoNetwork
	}
}

func (n *network) dial(ctx context.Context, address netip.AddrPort) (conn net.Conn, err error) {
	err = n.inside(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", address.String())
		return err
	})
	return conn, err
}

func (n *network) listen(address string) (listener net.Listener, err error) {
	err = n.inside(func() error {
		listener, err = net.Listen("tcp", address)
		return err
	})
	return listener, err
}
