package certificates

import (
	"context"
	"fmt"
	"slices"
)

// EnsureRuntime applies the Certificates of a runtime and returns the material that has been
// issued. It does not wait: call it in each reconcile of the runtime, and again soon while the
// status is not ready. While a certificate is renewed, the status stays ready and contains
// the previous certificate.
//
// An error is permanent, with the reason invalid_runtime, if the runtime needs another ID or
// domain. It has the reason runtime_taken if another object has the same ID.
func (c *Certificates) EnsureRuntime(ctx context.Context, r Runtime) (RuntimeStatus, error) {
	if err := c.validateRuntime(r); err != nil {
		return RuntimeStatus{}, err
	}

	c.locks.LockKey(string(r.ID))
	defer c.unlockRuntime(r.ID)

	pairs := []*pair{{wanted: c.clientCertificate(r)}, {wanted: c.webhookCertificate(r)}}
	for _, p := range pairs { // All are checked before any is written.
		if err := c.readPair(ctx, p, r); err != nil {
			return RuntimeStatus{}, fmt.Errorf("certificates: runtime %q: %w", r.ID, err)
		}
	}

	for _, p := range pairs {
		if c.isApplied(p) {
			continue
		}
		if err := c.applyOver(ctx, p.wanted, p.liveObject()); err != nil {
			return RuntimeStatus{}, fmt.Errorf("certificates: runtime %q: %w", r.ID, err)
		}
	}

	return c.runtimeStatus(ctx, r, pairs[0], pairs[1])
}

func (c *Certificates) validateRuntime(r Runtime) error {
	if err := checkID(r.ID); err != nil {
		return err
	}
	if err := checkDNSName(r.Domain); err != nil {
		return fmt.Errorf("%w: domain of runtime %q (annotation %s): %w",
			errInvalidRuntime, r.ID, c.opts.Names.DomainAnnotation, err)
	}

	isServer := func(name string) bool { return canonical(name) == canonical(r.Domain) }
	if slices.ContainsFunc(c.dnsNames, isServer) {
		return fmt.Errorf("%w: domain of runtime %q: %s is a name of the listener", errInvalidRuntime, r.ID, r.Domain)
	}

	return nil
}
