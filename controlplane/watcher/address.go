package watcher

import (
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
	var plain string
	for _, server := range gateway.Spec.GetServers() {
		address, ok := serverAddress(server)
		if ok && server.GetTls() != nil {
			return address, nil
		}
		if ok && plain == "" {
			plain = address
		}
	}
	return required(plain, key)
}

func serverAddress(server *apinetworkingv1beta1.Server) (string, bool) {
	if !servesHTTP(server) {
		return "", false
	}
	for _, host := range server.GetHosts() {
		// A prefix <namespace>/ limits the namespaces that may bind to the host.
		if host = host[strings.LastIndex(host, "/")+1:]; isHost(host) {
			return join(host, int(server.GetPort().GetNumber())), true
		}
	}
	return "", false
}

func gatewayAPIAddress(ctx context.Context, reader client.Reader, key client.ObjectKey) (string, error) {
	gateway := &gatewayv1.Gateway{}
	if err := reader.Get(ctx, key, gateway); err != nil {
		return "", fmt.Errorf("read Gateway %s: %w", key, err)
	}
	var plain string
	for i := range gateway.Spec.Listeners {
		listener := &gateway.Spec.Listeners[i]
		address, ok := listenerAddress(listener, gateway.Status.Addresses)
		if ok && listener.Protocol == gatewayv1.HTTPSProtocolType {
			return address, nil
		}
		if ok && plain == "" {
			plain = address
		}
	}
	return required(plain, key)
}

func listenerAddress(listener *gatewayv1.Listener, addresses []gatewayv1.GatewayStatusAddress) (string, bool) {
	switch {
	case !isHTTP(*listener):
		return "", false
	case listener.Hostname != nil && isHost(string(*listener.Hostname)):
		return join(string(*listener.Hostname), int(listener.Port)), true
	case listener.Hostname == nil && len(addresses) > 0:
		return join(addresses[0].Value, int(listener.Port)), true
	default:
		return "", false
	}
}

func required(address string, gateway client.ObjectKey) (string, error) {
	if address == "" {
		return "", fmt.Errorf("%w: %s needs a server for HTTP with a host that is no wildcard", errNoAddress, gateway)
	}
	return address, nil
}

func isHost(host string) bool { return host != "" && !strings.Contains(host, "*") }

func join(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
