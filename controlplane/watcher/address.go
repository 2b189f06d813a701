package watcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	apinetworkingv1beta1 "istio.io/api/networking/v1beta1"
	networkingv1beta1 "istio.io/client-go/pkg/apis/networking/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

var errNoAddress = errors.New("gateway has no address")

// GatewayAddress reads the address, <host>:<port>, by which agents reach a gateway. It is the first
// host without wildcard of the servers with TLS, or of those for HTTP if none has TLS. A Gateway of
// the Gateway API without hosts has the first address of its status. The kind is that of
// [Options.Routing]. It fails when the gateway has no such host.
func GatewayAddress(
	ctx context.Context, reader client.Reader, kind Routing, gateway client.ObjectKey,
) (string, error) {
	switch kind {
	case VirtualService:
		found := &networkingv1beta1.Gateway{}
		err := reader.Get(ctx, gateway, found)
		return first(gateway, err, found.Spec.GetServers(), func(s *apinetworkingv1beta1.Server) (string, bool) {
			for _, host := range hostsOf(s) {
				if isHost(host) {
					return join(host, int(s.GetPort().GetNumber())), s.GetTls() != nil
				}
			}
			return "", false
		})
	case HTTPRoute:
		found := &gatewayv1.Gateway{}
		err := reader.Get(ctx, gateway, found)
		return first(gateway, err, found.Spec.Listeners, func(l gatewayv1.Listener) (address string, withTLS bool) {
			switch withTLS = l.Protocol == gatewayv1.HTTPSProtocolType; {
			case !isHTTP(l):
			case l.Hostname != nil && isHost(string(*l.Hostname)):
				address = join(string(*l.Hostname), int(l.Port))
			case l.Hostname == nil && len(found.Status.Addresses) > 0:
				address = join(found.Status.Addresses[0].Value, int(l.Port))
			}
			return address, withTLS
		})
	default:
		return "", fmt.Errorf("%w: routing %q has no gateways", errNoAddress, kind)
	}
}

// first returns the first address with TLS, or else the first one. unread is why a gateway could
// not be read.
func first[S any](
	key client.ObjectKey, unread error, servers []S, addressOf func(S) (address string, withTLS bool),
) (string, error) {
	if unread != nil {
		return "", fmt.Errorf("read Gateway %s: %w", key, unread)
	}
	var plain string
	for _, server := range servers {
		address, withTLS := addressOf(server)
		if withTLS && address != "" {
			return address, nil
		}
		plain = cmp.Or(plain, address)
	}
	if plain == "" {
		return "", fmt.Errorf("%w: %s needs a server for HTTP with a host that is no wildcard", errNoAddress, key)
	}
	return plain, nil
}

func isHost(host string) bool { return host != "" && !strings.Contains(host, "*") }

func join(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
