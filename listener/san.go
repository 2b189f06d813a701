package listener

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// hasSAN reports whether one of the peer's SANs equals name. A wildcard in the certificate matches
// nothing but itself. A URI has a scheme: without one, it would pass for a domain.
func hasSAN(peer *core.Peer, name string) bool {
	if addr, err := netip.ParseAddr(name); err == nil {
		return slices.Contains(peer.IPs, addr.Unmap())
	}
	return strings.Contains(name, ":") && slices.Contains(peer.URIs, name) ||
		slices.ContainsFunc(peer.DNSNames, func(dns string) bool { return sameDNSName(dns, name) })
}

// sameDNSName compares as DNS does (RFC 4343): without regard to the case of ASCII letters, and to
// the trailing dot of the root.
func sameDNSName(a, b string) bool {
	a, b = strings.TrimSuffix(a, "."), strings.TrimSuffix(b, ".")
	if a == "" || len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if lower(a[i]) != lower(b[i]) {
			return false
		}
	}
	return true
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}
