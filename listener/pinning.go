package listener

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// Domains looks up the registered domain of each runtime.
//
// Domain returns the domain of the event's owner if the event has one (contract v1), and otherwise
// the domain of the runtime. To refuse, it returns [Forbidden] with the reason owner_missing,
// domain_missing or domain_ambiguous. Any other error, such as [core.ErrNotReady], means that the
// domain is not known yet. Domain is called concurrently and must not block.
//
// The result must depend only on the runtime and the owner. Events of one request with the same
// owner share one result.
type Domains interface {
	Domain(ctx context.Context, runtime core.RuntimeID, event *core.WatchEvent) (string, error)
}

// DomainsFunc adapts a function to [Domains].
type DomainsFunc func(ctx context.Context, runtime core.RuntimeID, event *core.WatchEvent) (string, error)

// Domain calls f.
func (f DomainsFunc) Domain(ctx context.Context, runtime core.RuntimeID, event *core.WatchEvent) (string, error) {
	return f(ctx, runtime, event)
}

// SANPinning lets an event pass if a SAN of the sender's certificate (DNS name, URI or IP address)
// equals the registered domain. A URI counts only with a scheme. DNS names are compared without
// regard to case and to one trailing dot (RFC 4343). A wildcard in the certificate matches nothing.
// A domain that is empty or contains a wildcard is refused.
func SANPinning(domains Domains) core.Verifier { return &sanPinning{domains: domains} }

// CAPinning lets an event pass if mayName returns true for each CA certificate of the sender's
// verified chain. The argument ca is the SHA-256 of the DER bytes of such a certificate, in
// lower-case hex.
//
// Without CAPinning, each CA of the bundle may name every runtime. For a CA that is not yours, such
// as the CA of a runtime that joined by itself, return true only for that runtime. Use [AllOf] to
// combine CAPinning with [SANPinning].
//
// A sender without [core.Peer].CAFingerprints is refused, so CAPinning does not fit NATS. Behind a
// gateway it works, because the listener verifies the certificate in the header itself. The reason
// of a refusal is "ca_mismatch". mayName is called concurrently and must not block.
func CAPinning(mayName func(ca string, runtime core.RuntimeID) bool) core.Verifier {
	return caPinning(mayName)
}

type caPinning func(ca string, runtime core.RuntimeID) bool

var errMayNameMissing = errors.New("function for CA pinning is nil")

func (p caPinning) Validate() error {
	if p == nil {
		return errMayNameMissing
	}
	return nil
}

func (p caPinning) Verify(_ context.Context, peer core.Peer, _ *core.WatchEvent) error {
	if len(peer.CAFingerprints) == 0 {
		return forbidden(reasons.CAMismatch, "the sender has no verified chain of certificates")
	}

	for _, ca := range peer.CAFingerprints {
		if !p(ca, peer.ID) {
			return forbidden(reasons.CAMismatch, "the CA sha256:%s may not name runtime %q", ca, peer.ID)
		}
	}
	return nil
}

var errDomainsMissing = errors.New("domains for SAN pinning are nil")

type sanPinning struct{ domains Domains }

func (p *sanPinning) Validate() error {
	if option.IsNil(p.domains) {
		return errDomainsMissing
	}
	return nil
}

// ForRequest returns the verifier for one request (see [New]).
func (p *sanPinning) ForRequest() core.Verifier { return &pinnedRequest{pinning: p} }

// pinnedRequest remembers the last verdict, because the events of a batch mostly have one owner. It
// is for the events of one sender, and must not be used concurrently.
type pinnedRequest struct {
	pinning *sanPinning
	known   bool
	key     core.EventKey // It has the owner only.
	err     error
}

func (r *pinnedRequest) Verify(ctx context.Context, peer core.Peer, event *core.WatchEvent) error {
	if key := (core.EventKey{Owner: event.Owner}); !r.known || r.key != key {
		r.err = r.pinning.Verify(ctx, peer, event)
		r.key = key
		r.known = true
	}
	return r.err
}

func (p *sanPinning) Verify(ctx context.Context, peer core.Peer, event *core.WatchEvent) error {
	domain, err := p.domains.Domain(ctx, peer.ID, event)
	switch {
	case err != nil:
		return err
	case strings.Trim(domain, ". \t\r\n") == "":
		return forbidden(reasons.DomainEmpty, "the registered domain is empty")
	case strings.Contains(domain, "*"):
		return forbidden(reasons.DomainWildcard, "the registered domain %.253q is a wildcard", domain)
	case !hasSAN(&peer, domain):
		return forbidden(reasons.SANMismatch, "no SAN of the certificate equals the registered domain %.253q", domain)
	default:
		return nil
	}
}

// hasSAN reports whether one of the peer's SANs equals name. A wildcard in the certificate matches
// nothing but itself. A URI has a scheme: without one, it would pass for a domain.
func hasSAN(peer *core.Peer, name string) bool {
	addr, err := netip.ParseAddr(name)
	isAddress := err == nil
	if isAddress {
		return slices.Contains(peer.IPs, addr.Unmap())
	}

	hasScheme := strings.Contains(name, ":")
	if hasScheme && slices.Contains(peer.URIs, name) {
		return true
	}
	return slices.ContainsFunc(peer.DNSNames, func(dns string) bool { return sameDNSName(dns, name) })
}

// sameDNSName compares as DNS does (RFC 4343): without regard to the case of ASCII letters, and to
// the trailing dot of the root.
func sameDNSName(a, b string) bool {
	a = strings.TrimSuffix(a, ".")
	b = strings.TrimSuffix(b, ".")
	// EqualFold compares letters beyond ASCII, too, and some of those equal a letter of ASCII. They
	// have more bytes.
	return a != "" && len(a) == len(b) && strings.EqualFold(a, b)
}
