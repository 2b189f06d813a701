package httpserver

import "net/netip"

// Origin returns the origin of a remote address: the IPv4 address without its port, or the IPv6
// /64 network. One host may use any address in that network (RFC 6177). Other strings are returned
// unchanged.
func Origin(remote string) string {
	const network = 64
	port, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	addr := port.Addr().Unmap()
	if addr.Is4() {
		return addr.String()
	}
	prefix, err := addr.WithZone("").Prefix(network)
	if err != nil {
		return addr.String()
	}
	return prefix.String()
}
