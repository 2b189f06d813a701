package listener

import (
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"slices"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener/internal/xfcc"
)

// HeaderXFCC is the header in which a gateway forwards the certificate of its client.
const HeaderXFCC = "X-Forwarded-Client-Cert"

// FromXFCC takes the peer from the last element of the X-Forwarded-Client-Cert header, which is the one that the
// gateway wrote (see package xfcc for its format). The header is believed only when proxy proves that the request comes from the gateway.
// The certificate is then checked as if the runtime were connected itself: its chain to roots, with the
// intermediate certificates of the element's Chain, validity, key usage for client authentication, and identity.
//
// The gateway must demand a client certificate and must write the header itself, for every request.
func FromXFCC(proxy Proxy, roots RootsFunc, opts PeerOptions) PeerSource {
	return &headerPeers{
		checker:      newChecker(opts),
		proxy:        proxy,
		roots:        roots,
		gatewayNames: slices.Clone(opts.GatewayNames),
		invalid:      opts.validate(),
	}
}

var (
	errProxyMissing = errors.New("proxy to believe is nil: want ProxyCertificate, ProxyAddresses or InsecureTrustEveryone")
	errNoHeader     = Unauthenticated(ReasonNoCertificate, "want a client certificate in the header %s", HeaderXFCC)
)

// headerPeers believes the header of a gateway.
type headerPeers struct {
	*checker

	proxy        Proxy
	roots        RootsFunc
	gatewayNames []string
	invalid      error
}

func (p *headerPeers) validate() error {
	invalid := p.invalid
	if p.proxy == nil {
		invalid = errors.Join(invalid, errProxyMissing)
	}

	if p.roots == nil {
		invalid = errors.Join(invalid, errRootsMissing)
	}

	return invalid
}

// Peer implements [PeerSource].
func (p *headerPeers) Peer(r *http.Request) (core.Peer, error) {
	if err := p.proxy(r); err != nil {
		return core.Peer{}, notTheGateway(err)
	}

	lines := r.Header[HeaderXFCC]
	if len(lines) == 0 {
		return core.Peer{}, errNoHeader
	}

	roots := p.roots()
	if roots == nil {
		return core.Peer{}, errNoRoots
	}

	key := keyOfLines(lines)
	if v, ok := p.known(key, roots); ok {
		return v.peer, v.err
	}

	leaf, chain, err := p.certificates(lines)
	if err != nil {
		return core.Peer{}, err
	}

	return p.check(key, leaf, chain, roots)
}

func notTheGateway(err error) error {
	if errors.Is(err, core.ErrNotReady) {
		return err
	}

	return Unauthenticated(ReasonUntrustedProxy, "sender is not the gateway: %w", err)
}

// certificates returns the runtime's certificate and those of its chain.
func (p *headerPeers) certificates(lines []string) (*x509.Certificate, []*x509.Certificate, error) {
	elements, err := xfcc.Parse(lines)
	if err != nil {
		return nil, nil, Unauthenticated(reasonOfHeader(err), "%s: %w", HeaderXFCC, err)
	}

	element, err := p.runtimeElement(elements)
	if err != nil {
		return nil, nil, err
	}

	leaf, chain, err := element.Certificates()
	if err != nil {
		return nil, nil, Unauthenticated(reasonOfHeader(err), "%s: %w", HeaderXFCC, err)
	}

	return leaf, chain, nil
}

// runtimeElement returns the element that the gateway wrote. Those before it came from outside and are worth nothing.
func (p *headerPeers) runtimeElement(elements []xfcc.Element) (*xfcc.Element, error) {
	if len(p.gatewayNames) == 0 {
		return &elements[len(elements)-1], nil
	}

	client := elements[len(elements)-1]
	named := func(name string) bool { return slices.Contains(p.gatewayNames, name) }

	switch {
	case !slices.ContainsFunc(client.URIs, named) && !slices.ContainsFunc(client.DNS, named):
		return nil, Unauthenticated(ReasonUntrustedProxy, "the sidecar's client is not the gateway: want one of %q", p.gatewayNames)
	case len(elements) == 1:
		return nil, errNoHeader
	default:
		return &elements[len(elements)-2], nil
	}
}

func reasonOfHeader(err error) string {
	switch {
	case errors.Is(err, xfcc.ErrTooLarge):
		return ReasonHeaderTooLarge
	case errors.Is(err, xfcc.ErrNoCertificate):
		return ReasonNoCertificate
	case errors.Is(err, xfcc.ErrMalformedCertificate):
		return ReasonMalformedCertificate
	case errors.Is(err, xfcc.ErrHashMismatch):
		return ReasonHashMismatch
	default:
		return ReasonMalformedHeader
	}
}

// keyOfLines hashes the header. A line holds no line break, so that no two headers share one input.
func keyOfLines(lines []string) cacheKey {
	if len(lines) == 1 {
		return sha256.Sum256([]byte(lines[0]))
	}

	hash := sha256.New()
	for _, line := range lines {
		_, _ = io.WriteString(hash, line+"\n") // A hash never fails.
	}

	return cacheKey(hash.Sum(nil))
}
