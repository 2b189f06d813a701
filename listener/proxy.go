package listener

import (
	"net/http"
	"net/netip"
)

// Proxy decides whether a request comes from the gateway whose headers are to be believed: nil says yes, an error why not. It is
// called concurrently and must not block.
type Proxy func(r *http.Request) error

// ProxyCertificate believes a proxy that shows a client certificate on the TLS connection to the listener: its chain
// leads to roots, and one of its SANs (DNS name, URI or IP address) equals one of names. Without names it believes nobody.
func ProxyCertificate(roots RootsFunc, names ...string) Proxy { return nil }

// ProxyAddresses believes a proxy that connects from one of the address ranges. Use it only where the network keeps others
// from sending with such an address. Without ranges it believes nobody.
func ProxyAddresses(ranges ...netip.Prefix) Proxy { return nil }

// AnyProxy believes a proxy that at least one of proxies believes.
func AnyProxy(proxies ...Proxy) Proxy { return nil }

// InsecureTrustEveryone believes everybody who can reach the listener: whoever sends the header with a certificate that he has
// seen is that runtime, as a certificate is no secret. For tests, and where nothing but the gateway can reach the listener by other means.
func InsecureTrustEveryone() Proxy { return nil }
