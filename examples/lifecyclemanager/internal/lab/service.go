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

// service stands in for the load balancer and the Service of the events. It leads connections to
// the endpoint that the operator has published.
type service struct {
	// address is that of the load balancer.
	address string
	cluster client.Client
	lab     *Lab
}

const (
	namespace    = "kcp-system"
	eventsLeader = "lifecycle-manager-events-leader"
)

func (l *Lab) startService() error {
	ctx, cancel := context.WithCancel(context.Background())
	socket, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		cancel()
		return err
	}
	_, port, _ := net.SplitHostPort(socket.Addr().String())
	l.service = &service{address: "localhost:" + port, cluster: l.plane.Client, lab: l}
	forwards := &machine.Forwarder{Dial: l.service.dial}
	forwards.Start(ctx, socket)
	l.onClose(func() error {
		cancel()
		err := socket.Close()
		forwards.Wait()
		return err
	})
	return nil
}

// dial connects to the replica that leads.
func (s *service) dial(ctx context.Context) (net.Conn, error) {
	leader, err := s.leader(ctx)
	if err != nil {
		return nil, err
	}
	return new(net.Dialer).DialContext(ctx, "tcp", leader.Events)
}

// leader returns the replica with the address of the endpoint.
func (s *service) leader(ctx context.Context) (*Operator, error) {
	slice := &discoveryv1.EndpointSlice{}
	if err := s.cluster.Get(ctx, client.ObjectKey{Namespace: namespace, Name: eventsLeader}, slice); err != nil {
		return nil, err
	}
	for _, endpoint := range slice.Endpoints {
		for _, replica := range s.lab.replicas {
			if strings.Join(endpoint.Addresses, "") == replica.podIP {
				return replica, nil
			}
		}
	}
	return nil, errors.New("no replica leads")
}
