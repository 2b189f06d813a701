package core

import (
	"net/netip"
	"time"
)

// Delivery is a verified event and its origin.
type Delivery struct {
	// Runtime is the verified sender.
	Runtime RuntimeID
	// Manager is the operator that the event is for.
	Manager Manager
	// Event says where to look.
	Event WatchEvent
	// Received is the time at which the listener had read the event.
	Received time.Time
}

// Peer is the sender of a request, as its certificate states. A listener builds it after
// it has checked the chain, the validity and the key usage of the certificate (RFC 5280).
type Peer struct {
	// ID names the runtime.
	ID RuntimeID
	// CommonName is that of the certificate's subject.
	CommonName string
	// DNSNames, URIs and IPs are the certificate's Subject Alternative Names (RFC 5280, section
	// 4.2.1.6), as written.
	DNSNames []string
	URIs     []string
	IPs      []netip.Addr
	// Fingerprint is the SHA-256 of the certificate's DER bytes, in lower case hex.
	Fingerprint string
	// NotBefore and NotAfter bound the validity of the certificate.
	NotBefore, NotAfter time.Time

	// Lost is closed when the path on which the peer sends has ended. It is nil if the receiver
	// does not notice that, as behind a gateway.
	Lost <-chan struct{}
}
