package listener

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// PeerOptions are the optional settings of [Peers]. The zero value is the documented default.
type PeerOptions struct {
	// Identity names the runtime of a verified certificate. It returns an error if the certificate
	// names no runtime. A name is also refused if it is blank, is longer than 2048 bytes, or
	// contains unprintable characters. Default: the Common Name of the subject.
	Identity func(*x509.Certificate) (core.RuntimeID, error)
	// CacheSize bounds the number of verified certificates in the cache, which take about 1 KiB
	// each. Default: 16,384.
	CacheSize int
	// Now is the clock for validity. Default: [time.Now].
	Now func() time.Time

	// GatewayNames is for [FromXFCC] behind a sidecar, such as the sidecar of Istio, which appends
	// an element about its client, the gateway. The header must then have two elements. The first
	// element describes the runtime. The second element must have one of these names as its only
	// URI or, without a URI, as one of its DNS names. The function proxy must prove that the sender
	// is the sidecar. Default: none, so the header must have one element.
	GatewayNames []string
	// ObserveOnly makes [FromXFCC] accept the last certificate of a header that does not come from
	// the gateway. This logger gets a line with the reason, as with the function [ObserveOnly]. Use
	// it for a dry run only, because any process that has seen a certificate can impersonate its
	// runtime. Default: none.
	ObserveOnly *slog.Logger
}

func (o PeerOptions) withDefaults() PeerOptions {
	return option.WithDefaults(o, PeerOptions{Identity: commonName, CacheSize: 16 << 10, Now: time.Now})
}

func commonName(cert *x509.Certificate) (core.RuntimeID, error) {
	return core.RuntimeID(cert.Subject.CommonName), nil
}

var errNoSPIFFE = errors.New("want exactly one URI SAN, of the form spiffe://<trust domain>/<path>")

// SPIFFE can be used as Identity of [PeerOptions]. It returns the whole SPIFFE ID, with scheme and
// trust domain: the one URI SAN of the certificate (X509-SVID, section 2).
func SPIFFE(cert *x509.Certificate) (core.RuntimeID, error) {
	if len(cert.URIs) != 1 {
		return "", fmt.Errorf("%w, have %d", errNoSPIFFE, len(cert.URIs))
	}

	id := cert.URIs[0]
	hasTrustDomain := id.Scheme == "spiffe" && id.Host != "" && id.Port() == ""
	hasPath := len(id.Path) > len("/")
	hasNothingElse := id.User == nil && id.RawQuery == "" && id.Fragment == ""
	if !hasTrustDomain || !hasPath || !hasNothingElse {
		return "", errNoSPIFFE
	}

	return core.RuntimeID(id.String()), nil
}

func checkIdentity(id core.RuntimeID) error {
	if err := option.RuntimeName(string(id)); err != nil {
		return unauthenticated(reasons.NoIdentity, "%w", err)
	}
	return nil
}
