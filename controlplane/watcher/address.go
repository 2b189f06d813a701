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

// errNoAddress means that a gateway has no host that agents could send to.
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
		return istioAddress(ctx, reader, gateway)
	case HTTPRoute:
		return gatewayAPIAddress(ctx, reader, gateway)
	default:
		return "", fmt.Errorf("%w: routing %q has no gateways", errNoAddress, kind)
	}
}

func istioAddress(ctx context.Context, reader client.Reader, key client.ObjectKey) (string, error) {
	gateway := &networkingv1beta1.Gateway{}
	if err := reader.Get(ctx, key, gateway); err != nil {
		return "", fmt.Errorf("read Gateway %s: %w", key, err)
	}
	return first(key, gateway.Spec.GetServers(), serverAddress)
}

// first returns the first address with TLS, or else the first one.
func first[S any](key client.ObjectKey, servers []S, addressOf func(S) (address string, withTLS bool)) (string, error) {
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

// serverAddress returns "" for a server without address.
func serverAddress(server *apinetworkingv1beta1.Server) (address string, withTLS bool) {
	for _, host := range hostsOf(server) {
		if isHost(host) {
			return join(host, int(server.GetPort().GetNumber())), server.GetTls() != nil
		}
	}
	return "", false
}

func gatewayAPIAddress(ctx context.Context, reader client.Reader, key client.ObjectKey) (string, error) {
	gateway := &gatewayv1.Gateway{}
	if err := reader.Get(ctx, key, gateway); err != nil {
		return "", fmt.Errorf("read Gateway %s: %w", key, err)
	}
	return first(key, gateway.Spec.Listeners, func(l gatewayv1.Listener) (address string, withTLS bool) {
		switch withTLS = l.Protocol == gatewayv1.HTTPSProtocolType; {
		case !isHTTP(l):
		case l.Hostname != nil && isHost(string(*l.Hostname)):
			address = join(string(*l.Hostname), int(l.Port))
		case l.Hostname == nil && len(gateway.Status.Addresses) > 0:
			address = join(gateway.Status.Addresses[0].Value, int(l.Port))
		}
		return address, withTLS
	})
}

func isHost(host string) bool { return host != "" && !strings.Contains(host, "*") }

func join(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
