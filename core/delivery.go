package core

import (
	"net/netip"
	"time"
)

// Delivery is a verified event and where it came from.
type Delivery struct {
	// Runtime sent the event, and proved that it is this runtime.
	Runtime RuntimeID
	// Manager is the operator that the event is for.
	Manager Manager
	// Event is what the runtime asks to look at.
	Event WatchEvent
	// Received is when the listener had read the event.
	Received time.Time
}

// Peer is who sent a request, as its certificate says. A listener builds one from a certificate that it has checked:
// chain, validity and key usage (RFC 5280) hold.
type Peer struct {
	// ID names the runtime.
	ID RuntimeID
	// CommonName is that of the certificate's subject.
	CommonName string
	// DNSNames, URIs and IPs are the certificate's Subject Alternative Names (RFC 5280, section 4.2.1.6), as written.
	DNSNames []string
	URIs     []string
	IPs      []netip.Addr
	// Fingerprint is the SHA-256 of the certificate's DER bytes, in lower case hex.
	Fingerprint string
	// NotAfter is when the certificate expires.
	NotAfter time.Time
}
