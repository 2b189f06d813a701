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

var (
	errNotNamed   = errors.New("no SAN of the proxy is a name of the gateway")
	errNoAddress  = errors.New("no IP address with a port")
	errOutOfRange = errors.New("not in the ranges of the gateway")
)

// maxGateways bounds the certificates of gateways that are remembered. The replicas of a gateway
// have few.
const maxGateways = 256

// ProxyCertificate accepts a gateway by the client certificate of its TLS connection. Its chain
// must lead to roots. One of its SANs (DNS name, URI, IP address) must equal one of names. Without
// names it accepts none.
//
// With [crypto/tls.RequireAndVerifyClientCert] in Options.TLS, strangers fail in the handshake.
func ProxyCertificate(roots func() *x509.CertPool, names ...string) func(*http.Request) error {
	// A gateway is identified by its names: it need not have the identity of a runtime.
	identity := func(*x509.Certificate) (core.RuntimeID, error) { return "gateway", nil }
	check := newChecker(PeerOptions{Identity: identity, CacheSize: maxGateways})
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

// ProxyAddresses accepts a gateway that connects from one of the address ranges. Use it only in a
// network in which others cannot send from such an address. Without ranges it accepts none. Behind
// a sidecar of Istio, requests come from 127.0.0.6.
func ProxyAddresses(ranges ...netip.Prefix) func(*http.Request) error {
	ranges = slices.Clone(ranges)
	return func(r *http.Request) error {
		remote, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil {
			return fmt.Errorf("remote address %.80q: %w", r.RemoteAddr, errNoAddress)
		}
		addr := remote.Addr().Unmap().WithZone("")
		if !slices.ContainsFunc(ranges, func(prefix netip.Prefix) bool { return prefix.Contains(addr) }) {
			return fmt.Errorf("remote address %s: %w", addr, errOutOfRange)
		}
		return nil
	}
}

// InsecureAnyProxy accepts every sender. A certificate is no secret: each sender that has seen one
// can then pass for its runtime. Use it in tests only, or if nothing but the gateway can reach the
// listener.
func InsecureAnyProxy() func(*http.Request) error {
	return func(*http.Request) error { return nil }
}
