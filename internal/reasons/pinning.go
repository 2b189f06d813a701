package reasons

// The reasons for which a sender is not the runtime that it may trigger, in the answers of a
// listener (401 without identity, otherwise 403).
const (
	// NoIdentity means that the certificate names no runtime.
	NoIdentity = "no_identity"
	// OwnerMissing means that the owner of the event is not in the control plane.
	OwnerMissing = "owner_missing"
	// DomainMissing means that no domain is registered.
	DomainMissing = "domain_missing"
	// DomainEmpty means that the registered domain is empty.
	DomainEmpty = "domain_empty"
	// DomainWildcard means that the registered domain is a wildcard.
	DomainWildcard = "domain_wildcard"
	// DomainAmbiguous means that a domain is registered for several runtimes, or that a runtime has
	// several domains.
	DomainAmbiguous = "domain_ambiguous"
	// SANMismatch means that no SAN of the certificate equals the registered domain.
	SANMismatch = "san_mismatch"
	// CAMismatch means that a CA of the sender's certificate may not name the runtime.
	CAMismatch = "ca_mismatch"
	// Revoked means that the certificate or a name of the sender is on the list of revoked senders.
	// A fleet also uses it as the reason for which such a runtime is stale.
	Revoked = "revoked"
)
