package listener

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/listener/internal/xfcc"
)

// Peers identifies the senders of requests. [FromTLS], [FromXFCC] and [PeersFunc] make it. The zero
// value is not valid.
type Peers struct {
	identify func(r *http.Request) (core.Peer, error)
	// ownsConnection means that the connection of a request belongs to its runtime. It needs TLS.
	// Those of a gateway carry the requests of many runtimes.
	ownsConnection bool
	behindGateway  bool
	// observeOnly means that the sender need not be the gateway.
	observeOnly bool
	// checkHandshake checks the certificate after the handshake, while the connection has a slot
	// for computing. It keeps a good verdict with the connection and never ends the connection: a
	// request gets an answer with the cause. Nil: nothing is checked there.
	checkHandshake func(state *tls.ConnectionState, kept *atomic.Value)
	// invalid is the error in the arguments of the constructor.
	invalid error
}

// PeersFunc returns Peers that call identify.
//
// The function identify returns a peer with an ID, or an error. An error that wraps
// [core.ErrUnauthenticated] is answered with 401. Any other error means that the sender is not
// known yet, and is answered with 503. The text of an error goes to the log, never to the sender.
// identify is called concurrently and must not block. An ID is refused under the same conditions as
// a name that [PeerOptions].Identity returns.
func PeersFunc(identify func(r *http.Request) (core.Peer, error)) Peers {
	if identify == nil {
		return Peers{}
	}
	return Peers{identify: func(r *http.Request) (core.Peer, error) {
		peer, err := identify(r)
		if err != nil {
			return core.Peer{}, err
		}
		if err := checkIdentity(peer.ID); err != nil {
			return core.Peer{}, err
		}
		return peer, nil
	}}
}

// Peer returns the sender of a request.
func (p Peers) Peer(r *http.Request) (core.Peer, error) { return p.identify(r) }

var errPeersMissing = errors.New("peers are nil: want FromTLS or FromXFCC")

// validate checks the peers, and a configuration of TLS that does not depend on the client.
func (p Peers) validate(config *tls.Config) error {
	if p.identify == nil {
		return errPeersMissing
	}
	isFixed := p.ownsConnection && config != nil && config.GetConfigForClient == nil
	if isFixed && config.ClientAuth == tls.NoClientCert {
		return errors.Join(p.invalid, errNoClientAuth)
	}
	return p.invalid
}

var errNoClientAuth = errors.New(
	"Options.TLS asks for no client certificate, so that every sender would be refused: want a ClientAuth")

// FromTLS takes the peer from the client certificate of the TLS connection and verifies its chain
// against the current CA bundle. Options.TLS must request a client certificate. Once a CA is
// removed from the bundle, each further request with a certificate of that CA is refused, also on
// an open connection.
//
// roots returns the current CA bundle. It is called for every request and must not block. It must
// return a new pool rather than change a pool that it has returned. Nil means that there is no
// bundle yet: requests are then answered with 503. The system roots are never used.
//
// With [tls.RequestClientCert], each refusal is answered with 401 and counted with its reason. With
// [tls.RequireAndVerifyClientCert], which keys.ServerTLSConfig sets, the handshake fails for most
// unknown senders, and Hooks.HandshakeFailed gets the cause.
//
// Start verifies a chain once, in the handshake, where slots bound the cost. Each request then
// needs only a comparison. A chain of more than 10 certificates is refused without verification.
func FromTLS(roots func() *x509.CertPool, opts PeerOptions) Peers {
	invalid := option.NotNegative("PeerOptions.CacheSize", opts.CacheSize)
	if roots == nil {
		invalid = errors.Join(invalid, errRootsMissing)
	}

	check := newChecker(opts)
	return Peers{
		identify: func(r *http.Request) (core.Peer, error) {
			v := check.fromRequest(r, roots())
			return v.peer, v.err
		},
		// The verdict is remembered for the requests. If the operator's code panics, the first
		// request also fails, and is answered with 503.
		checkHandshake: func(state *tls.ConnectionState, kept *atomic.Value) {
			defer func() { _ = recover() }()
			check.keepVerdict(kept, check.fromConnection(state, roots()))
		},
		ownsConnection: true,
		invalid:        invalid,
	}
}

var (
	errRootsMissing = errors.New("function for the CA bundle is nil")
	errProxyMissing = errors.New("proxy is nil: want ProxyCertificate, ProxyAddresses or InsecureAnyProxy")
)

const headerXFCC = "X-Forwarded-Client-Cert"

// FromXFCC takes the peer from the X-Forwarded-Client-Cert header of a gateway, in the format of
// Envoy. The runtime's certificate is verified as with [FromTLS], with the intermediate
// certificates from Chain of the element.
//
// The function proxy returns nil if a request comes from the gateway, as [ProxyCertificate] and
// [ProxyAddresses] do. An error that wraps [core.ErrNotReady] is answered with 503, and any other
// error with 401. proxy is called concurrently and must not block.
//
// The gateway must require a client certificate and must set the header in every request instead of
// appending to it. A header with several elements is refused unless [PeerOptions].GatewayNames is
// set.
func FromXFCC(proxy func(*http.Request) error, roots func() *x509.CertPool, opts PeerOptions) Peers {
	invalid := option.NotNegative("PeerOptions.CacheSize", opts.CacheSize)
	if proxy == nil {
		invalid = errors.Join(invalid, errProxyMissing)
	}
	if roots == nil {
		invalid = errors.Join(invalid, errRootsMissing)
	}

	p := &headerPeers{
		checker: newChecker(opts), proxy: proxy, roots: roots, gatewayNames: slices.Clone(opts.GatewayNames),
	}
	if opts.ObserveOnly == nil || invalid != nil {
		return Peers{identify: p.identify, behindGateway: true, invalid: invalid}
	}

	dry := &headerPeers{checker: newChecker(opts), proxy: InsecureAnyProxy(), roots: roots, takesLast: true}
	log := newObservedLog(opts.ObserveOnly)
	observe := func(r *http.Request) (core.Peer, error) {
		peer, err := p.identify(r)
		if err == nil || core.ReasonOf(err) != ReasonUntrustedProxy {
			return peer, err
		}

		peer, failed := dry.identify(r)
		if failed == nil {
			log.logTaken(r.Context(), peer.ID, err)
		}
		return peer, failed
	}

	return Peers{identify: observe, behindGateway: true, observeOnly: true}
}

var errNoHeader = unauthenticated(ReasonNoCertificate, "want a client certificate in the header %s", headerXFCC)

// headerPeers identifies senders by the header of a gateway. Its fields do not change. The checker
// has a cache with its own lock.
type headerPeers struct {
	*checker

	proxy        func(*http.Request) error
	roots        func() *x509.CertPool
	gatewayNames []string
	// takesLast means that the last element with a certificate is the runtime's.
	takesLast bool
}

// identify trusts the header only after the proxy has proved to be the gateway. It remembers
// verdicts by the whole header.
func (p *headerPeers) identify(r *http.Request) (core.Peer, error) {
	err := p.proxy(r)
	switch {
	case errors.Is(err, core.ErrNotReady):
		return core.Peer{}, err
	case err != nil:
		return core.Peer{}, unauthenticated(ReasonUntrustedProxy, "sender is not the gateway: %w", err)
	}

	lines := r.Header[headerXFCC]
	if len(lines) == 0 {
		return core.Peer{}, errNoHeader
	}
	roots := p.roots()
	if roots == nil {
		return core.Peer{}, errNoRoots
	}

	// A line has no line break, so that two headers do not share one key.
	key := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	v := p.rememberedVerdict(key, roots)
	if v == nil {
		leaf, chain, err := p.parseCertificates(lines)
		if err != nil {
			return core.Peer{}, err
		}
		v = p.verifyOnce(key, leaf, chain, roots)
	}

	return v.peer, v.err
}

func (p *headerPeers) parseCertificates(lines []string) (*x509.Certificate, []*x509.Certificate, error) {
	elements, err := xfcc.Parse(lines)
	if err != nil {
		return nil, nil, p.headerError(err)
	}
	element, err := p.runtimeElement(elements)
	if err != nil {
		return nil, nil, err
	}
	leaf, chain, err := element.Certificates()
	if err != nil {
		return nil, nil, p.headerError(err)
	}
	return leaf, chain, nil
}

// runtimeElement returns the element that the gateway wrote about its client, the runtime.
func (p *headerPeers) runtimeElement(elements []xfcc.Element) (*xfcc.Element, error) {
	switch {
	case p.takesLast:
		for len(elements) > 1 && elements[len(elements)-1].Cert == "" {
			elements = elements[:len(elements)-1]
		}
		return &elements[len(elements)-1], nil
	case len(p.gatewayNames) > 0:
		return p.beforeSidecar(elements)
	case len(elements) > 1:
		return nil, unauthenticated(ReasonSeveralElements, "%s has %d elements, want the gateway to set the header, "+
			"not to append to it; behind a sidecar, set PeerOptions.GatewayNames", headerXFCC, len(elements))
	default:
		return &elements[0], nil
	}
}

// beforeSidecar returns the element before the element of the sidecar, if the sidecar's client is
// the gateway. There are exactly two: the gateway replaces each element from outside.
func (p *headerPeers) beforeSidecar(elements []xfcc.Element) (*xfcc.Element, error) {
	client := elements[len(elements)-1]
	switch {
	case !p.isGateway(&client):
		return nil, unauthenticated(ReasonUntrustedProxy, "the sidecar's client is not the gateway: "+
			"it is %.200q, want exactly one URI and nothing unknown behind it, of PeerOptions.GatewayNames, %q",
			slices.Concat(client.URIs, client.DNS), p.gatewayNames)
	case len(elements) == 1:
		return nil, errNoHeader
	// A comma in a SAN splits an element.
	case len(elements) > 2:
		return nil, unauthenticated(ReasonSeveralElements, "%s has %d elements, want two: "+
			"the gateway to set the header, not to append to it, and its sidecar to append one",
			headerXFCC, len(elements))
	default:
		return &elements[0], nil
	}
}

// isGateway compares the only URI, and the DNS names of a client without URI. Envoy writes a URI
// without quotes, so that all behind it may be its own text: a client of another trust domain could
// add the gateway's name to its own.
func (p *headerPeers) isGateway(client *xfcc.Element) bool {
	isNamed := func(name string) bool { return slices.Contains(p.gatewayNames, name) }
	switch {
	case client.Trailing || len(client.URIs) > 1:
		return false
	case len(client.URIs) == 1:
		return isNamed(client.URIs[0])
	default:
		return slices.ContainsFunc(client.DNS, isNamed)
	}
}

// headerReasons maps the errors of package xfcc, except ErrMalformed, to their reasons.
var headerReasons = map[error]core.Reason{
	xfcc.ErrTooLarge:             ReasonHeaderTooLarge,
	xfcc.ErrNoCertificate:        ReasonNoCertificate,
	xfcc.ErrMalformedCertificate: ReasonMalformedCertificate,
	xfcc.ErrHashMismatch:         ReasonHashMismatch,
}

func (p *headerPeers) headerError(err error) error {
	reason := ReasonMalformedHeader
	hint := ""
	for cause, its := range headerReasons {
		if errors.Is(err, cause) {
			reason = its
		}
	}

	if reason == ReasonNoCertificate && len(p.gatewayNames) == 0 {
		hint = "; if a sidecar wrote the element, set PeerOptions.GatewayNames"
	}
	return unauthenticated(reason, "%s: %w%s", headerXFCC, err, hint)
}

var (
	errNotNamed   = errors.New("no SAN of the proxy is a name of the gateway")
	errNoAddress  = errors.New("no IP address with a port")
	errOutOfRange = errors.New("not in the ranges of the gateway")
)

// maxGateways bounds the certificates of gateways that are remembered. The replicas of a gateway
// have few.
const maxGateways = 256

// ProxyCertificate accepts a gateway by the client certificate of its TLS connection. The chain of
// the certificate must lead to roots. One of its SANs (DNS name, URI, IP address) must equal one of
// names. Without names, ProxyCertificate accepts no gateway.
//
// With [crypto/tls.RequireAndVerifyClientCert] in Options.TLS, the handshake fails for unknown
// senders.
func ProxyCertificate(roots func() *x509.CertPool, names ...string) func(*http.Request) error {
	// A gateway is identified by its names: it need not have the identity of a runtime.
	identity := func(*x509.Certificate) (core.RuntimeID, error) { return "gateway", nil }
	check := newChecker(PeerOptions{Identity: identity, CacheSize: maxGateways})
	names = slices.Clone(names)
	return func(r *http.Request) error {
		if roots == nil {
			return errRootsMissing
		}

		v := check.fromConnection(r.TLS, roots())
		if v.err == nil && !slices.ContainsFunc(names, func(name string) bool { return hasSAN(&v.peer, name) }) {
			return errNotNamed
		}
		return v.err
	}
}

// ProxyAddresses accepts a gateway that connects from one of the address ranges. Use it only in a
// network in which no other process can send from such an address. Without ranges, ProxyAddresses
// accepts no gateway. Behind a sidecar of Istio, requests come from 127.0.0.6.
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

// InsecureAnyProxy accepts every sender. A certificate is not a secret: each sender that has seen a
// certificate can then impersonate its runtime. Use it only in tests, or if nothing but the gateway
// can reach the listener.
func InsecureAnyProxy() func(*http.Request) error {
	return func(*http.Request) error { return nil }
}
