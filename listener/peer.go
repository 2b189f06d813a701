package listener

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"net/http"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Peers identifies the sender of a request.
//
// Peer returns a peer with an ID, or an error. One that wraps [core.ErrUnauthenticated] is answered
// 401. Any other means that the sender is not known yet, and is answered 503. Its text goes to the
// log, never to the sender. Peer is called concurrently and must not block.
type Peers interface {
	Peer(r *http.Request) (core.Peer, error)
}

// PeersFunc makes a function [Peers].
type PeersFunc func(r *http.Request) (core.Peer, error)

// Peer calls f.
func (f PeersFunc) Peer(r *http.Request) (core.Peer, error) { return f(r) }

// RootsFunc returns the current CA bundle. It is called for every request and must not block. It
// must return a new pool rather than change one that it has returned. Nil means that there is no
// bundle yet: requests are then answered 503. The roots of the system are never used.
type RootsFunc func() *x509.CertPool

var errNoRoots = fmt.Errorf("%w: there is no CA bundle", core.ErrNotReady)

// PeerOptions are the optional settings of [Peers]. The zero value is the documented default.
type PeerOptions struct {
	// Identity names the runtime of a verified certificate. Default: the Common Name of its
	// subject.
	Identity IdentityFunc
	// CacheSize bounds the verified certificates that are remembered, at about 1 KiB each.
	// Default: 16,384.
	CacheSize int
	// Now is the clock for validity. Default: [time.Now].
	Now func() time.Time

	// GatewayNames is for [FromXFCC] behind a sidecar, such as Istio's, which appends an element
	// about its client, the gateway. The last element must then have one of these names as URI or
	// DNS, and the element before it is the runtime's. Proxy must prove that the sender is the
	// sidecar. Default: none, the header must have one element.
	GatewayNames []string
}

const defaultCacheSize = 16 << 10

func (o PeerOptions) withDefaults() PeerOptions {
	o.CacheSize = cmp.Or(o.CacheSize, defaultCacheSize)
	if o.Identity == nil {
		o.Identity = commonName
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

func (o PeerOptions) validate() error { return notNegative("PeerOptions.CacheSize", o.CacheSize) }
