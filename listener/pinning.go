package listener

import (
	"context"
	"errors"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// DomainSource knows the domain that is registered for what an event wants to trigger: that of the event's owner where
// it names one (contract v1), and else that of the runtime which sent it.
//
// Domain must return promptly and is called concurrently. It refuses with [Forbidden] and one of [ReasonOwnerMissing],
// [ReasonDomainMissing] and [ReasonDomainAmbiguous]; an error that wraps [core.ErrNotReady], like any other, says that
// the answer is not known yet.
type DomainSource interface {
	Domain(ctx context.Context, runtime core.RuntimeID, event *core.WatchEvent) (string, error)
}

// DomainSourceFunc makes a function a [DomainSource].
type DomainSourceFunc func(ctx context.Context, runtime core.RuntimeID, event *core.WatchEvent) (string, error)

// Domain calls f.
func (f DomainSourceFunc) Domain(ctx context.Context, runtime core.RuntimeID, event *core.WatchEvent) (string, error) {
	return f(ctx, runtime, event)
}

// SANPinning lets an event pass when the certificate of its sender has at least one SAN (DNS name, URI or IP address) equal to the
// domain that domains has registered. DNS names are compared without regard to case and to one trailing dot (RFC 4343);
// a wildcard in the certificate matches nothing, and an empty or wildcard domain is refused.
func SANPinning(domains DomainSource) core.Verifier { return &sanPinning{domains: domains} }

var errDomainsMissing = errors.New("source of domains for SAN pinning is nil")

type sanPinning struct{ domains DomainSource }

func (p *sanPinning) validate() error {
	if p.domains == nil {
		return errDomainsMissing
	}

	return nil
}

// Verify implements [core.Verifier].
func (p *sanPinning) Verify(ctx context.Context, peer core.Peer, event *core.WatchEvent) error {
	domain, err := p.domains.Domain(ctx, peer.ID, event)

	switch {
	case err != nil:
		return err
	case strings.Trim(domain, ". \t\r\n") == "":
		return Forbidden(ReasonDomainEmpty, "the registered domain is empty")
	case strings.Contains(domain, "*"):
		return Forbidden(ReasonDomainWildcard, "the registered domain %.253q is a wildcard", domain)
	case !hasSAN(&peer, domain):
		return Forbidden(ReasonSANMismatch, "no SAN of the certificate equals the registered domain %.253q", domain)
	default:
		return nil
	}
}
