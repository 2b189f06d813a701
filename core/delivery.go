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
	// Event names the object or the runtime to reconcile.
	Event WatchEvent
	// Received is the time at which the listener finished reading the event.
	Received time.Time
}

// Peer is the sender of a request, as described by its certificate. A listener builds it after it
// has checked the chain, the validity and the key usage of the certificate (RFC 5280).
type Peer struct {
	// ID names the runtime.
	ID RuntimeID
	// CommonName is the Common Name of the certificate's subject.
	CommonName string
	// DNSNames, URIs and IPs are the certificate's Subject Alternative Names (RFC 5280, section
	// 4.2.1.6), as written.
	DNSNames []string
	URIs     []string
	IPs      []netip.Addr
	// Fingerprint is the SHA-256 of the certificate's DER bytes, in lower-case hex.
	Fingerprint string
	// OtherFingerprints are the fingerprints of equally valid forms of the certificate that the
	// holder can present instead. An ECDSA signature has two forms (SEC 1, section 4.1.4).
	OtherFingerprints []string
	// CAFingerprints are the SHA-256 of the root and intermediate CA certificates that verify the
	// certificate, in lower-case hex and sorted. It is empty if the receiver has verified no chain,
	// as over NATS.
	CAFingerprints []string
	// NotBefore and NotAfter bound the validity of the certificate.
	NotBefore, NotAfter time.Time

	// Lost is closed when the connection on which the peer sends has ended. It is nil if the
	// receiver cannot observe that connection, as behind a gateway.
	Lost <-chan struct{}
}
