package crowd

import "net/netip"

// Origin returns what a connection from a remote address counts to: the address without its port, and of IPv6 the network, in which one
// host may have any number of addresses (RFC 6177). What is no address with a port counts as it is written.
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
