package watcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	networkingv1beta1 "istio.io/client-go/pkg/apis/networking/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

var errNoAddress = errors.New("gateway has no address")

// GatewayAddress returns the address <host>:<port> at which agents reach a gateway. kind must equal
// [Options.Routing]. The host is the first host without a wildcard. Servers with TLS come before
// servers for plain HTTP. If a Gateway of the Gateway API has no hosts, the first address of its
// status is used. GatewayAddress fails if the gateway has no such host.
func GatewayAddress(
	ctx context.Context, reader client.Reader, kind Routing, gateway client.ObjectKey,
) (string, error) {
	var withTLS, plain []string
	add := func(hasTLS bool, host string, port int) {
		address := net.JoinHostPort(host, strconv.Itoa(port))
		switch {
		case host == "" || strings.Contains(host, "*"):
		case hasTLS:
			withTLS = append(withTLS, address)
		default:
			plain = append(plain, address)
		}
	}

	var unread error
	switch kind {
	case VirtualService:
		found := &networkingv1beta1.Gateway{}
		unread = reader.Get(ctx, gateway, found)
		for _, server := range found.Spec.GetServers() {
			for _, host := range hostsOf(server) {
				add(server.GetTls() != nil, host, int(server.GetPort().GetNumber()))
			}
		}
	case HTTPRoute:
		found := &gatewayv1.Gateway{}
		unread = reader.Get(ctx, gateway, found)
		for _, l := range found.Spec.Listeners {
			hasTLS := l.Protocol == gatewayv1.HTTPSProtocolType
			switch {
			case !isHTTP(l):
			case l.Hostname != nil:
				add(hasTLS, string(*l.Hostname), int(l.Port))
			case len(found.Status.Addresses) > 0:
				add(hasTLS, found.Status.Addresses[0].Value, int(l.Port))
			}
		}
	case NoRouting: // It has no gateways.
	}

	all := slices.Concat(withTLS, plain)
	if unread == nil && len(all) == 0 {
		unread = fmt.Errorf("%w: want a server for HTTP with a host that is no wildcard", errNoAddress)
	}
	if unread != nil {
		return "", fmt.Errorf("read Gateway %s: %w", gateway, unread)
	}

	return all[0], nil
}
