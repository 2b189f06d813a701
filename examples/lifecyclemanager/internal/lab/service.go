package lab

import (
	"context"
	"errors"
	"net"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/test/lab/machine" //nolint:depguard // Not released.
)

const (
	namespace    = "kcp-system"
	eventsLeader = "lifecycle-manager-events-leader"
)

// startService stands in for the load balancer and the Service of the events, and returns the
// address. It leads connections to the endpoint that the operator has published.
func (l *Lab) startService() (address string, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	socket, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		cancel()
		return "", err
	}
	forwards := &machine.Forwarder{Dial: func(ctx context.Context) (net.Conn, error) {
		leader, err := l.Leader(ctx)
		if err != nil {
			return nil, err
		}
		return new(net.Dialer).DialContext(ctx, "tcp", leader.Events)
	}}
	forwards.Start(ctx, socket)
	l.onClose(func() error {
		cancel()
		err := socket.Close()
		forwards.Wait()
		return err
	})
	_, port, err := net.SplitHostPort(socket.Addr().String())
	return "localhost:" + port, err
}

// Leader returns the replica that leads: its address is that of the endpoint.
func (l *Lab) Leader(ctx context.Context) (*Operator, error) {
	slice := &discoveryv1.EndpointSlice{}
	if err := l.Plane.Get(ctx, client.ObjectKey{Namespace: namespace, Name: eventsLeader}, slice); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, endpoint := range slice.Endpoints {
		for _, replica := range l.replicas {
			if strings.Join(endpoint.Addresses, "") == replica.podIP {
				return replica, nil
			}
		}
	}
	return nil, errors.New("no replica leads")
}
