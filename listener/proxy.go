package listener

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Proxy decides whether a request comes from the gateway whose headers are to be believed: nil says yes, an error why not. It is
// called concurrently and must not block.
type Proxy func(r *http.Request) error

var (
	errNotNamed   = errors.New("certificate of the proxy carries none of the names of the gateway")
	errNoAddress  = errors.New("remote address is no IP address with port")
	errOutOfRange = errors.New("remote address is in none of the ranges of the gateway")
	errNobody     = errors.New("nobody is believed")
)

// ProxyCertificate believes a proxy that shows a client certificate on the TLS connection to the listener: its chain
// leads to roots, it is valid and for client authentication, and one of its SANs (DNS name, URI or IP address) equals one of names.
// The server has to ask for a certificate: [tls.RequestClientCert] or more. Without names it believes nobody.
func ProxyCertificate(roots RootsFunc, names ...string) Proxy {
	// A gateway need not be a runtime: what counts are its names.
	anybody := func(*x509.Certificate) (core.RuntimeID, error) { return "gateway", nil }
	check := newChecker(PeerOptions{Identity: anybody, CacheSize: maxGateways})
	names = slices.Clone(names)

	return func(r *http.Request) error {
		if roots == nil {
			return errRootsMissing
		}

		peer, err := check.fromConnection(r.TLS, roots())
		if err != nil {
			return err
		}

		if !slices.ContainsFunc(names, func(name string) bool { return hasSAN(&peer, name) }) {
			return errNotNamed
		}

		return nil
	}
}

// maxGateways is how many certificates of proxies are remembered: replicas have few.
const maxGateways = 256

// ProxyAddresses believes a proxy that connects from one of the address ranges. Use it only where the network keeps others
// from sending with such an address. Without ranges it believes nobody.
func ProxyAddresses(ranges ...netip.Prefix) Proxy {
	ranges = slices.Clone(ranges)

	return func(r *http.Request) error {
		remote, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil {
			return errNoAddress
		}

		addr := remote.Addr().Unmap().WithZone("")
		if !slices.ContainsFunc(ranges, func(prefix netip.Prefix) bool { return prefix.Contains(addr) }) {
			return fmt.Errorf("%w: %s", errOutOfRange, addr)
		}

		return nil
	}
}

// AnyProxy believes a proxy that at least one of proxies believes. Without proxies it believes nobody.
func AnyProxy(proxies ...Proxy) Proxy {
	proxies = slices.Clone(proxies)

	return func(r *http.Request) error {
		refused := errNobody

		for i, proxy := range proxies {
			err := proxy(r)
			if err == nil {
				return nil
			}

			if i == 0 || errors.Is(err, core.ErrNotReady) {
				refused = err
			}
		}

		return refused
	}
}

// InsecureTrustEveryone believes everybody who can reach the listener: whoever sends the header with a certificate that he has
// seen is that runtime, as a certificate is no secret. For tests, and where other means keep all but the gateway away.
func InsecureTrustEveryone() Proxy {
	return func(*http.Request) error { return nil }
}
