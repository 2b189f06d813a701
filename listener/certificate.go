package listener

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"net/netip"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// newPeer returns the peer with an identity and a certificate.
func newPeer(id core.RuntimeID, cert *x509.Certificate) core.Peer {
	sum := sha256.Sum256(cert.Raw)
	return core.Peer{
		ID:          id,
		CommonName:  cert.Subject.CommonName,
		DNSNames:    cert.DNSNames,
		URIs:        uris(cert),
		IPs:         addresses(cert),
		Fingerprint: hex.EncodeToString(sum[:]),
		NotBefore:   cert.NotBefore,
		NotAfter:    cert.NotAfter,
	}
}

func uris(cert *x509.Certificate) []string {
	var uris []string
	for _, uri := range cert.URIs {
		uris = append(uris, uri.String())
	}
	return uris
}

func addresses(cert *x509.Certificate) []netip.Addr {
	var ips []netip.Addr
	for _, ip := range cert.IPAddresses {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			ips = append(ips, addr.Unmap())
		}
	}
	return ips
}
