package listener

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// PeerSource finds out who sent a request.
//
// An error that wraps [core.ErrUnauthenticated] is answered 401; any other means that the answer is not known yet, and is
// answered 503. Its text goes to the log, never to the sender. Peer is called concurrently and must not block.
type PeerSource interface {
	Peer(r *http.Request) (core.Peer, error)
}

// PeerSourceFunc makes a function a [PeerSource].
type PeerSourceFunc func(r *http.Request) (core.Peer, error)

// Peer calls f.
func (f PeerSourceFunc) Peer(r *http.Request) (core.Peer, error) { return f(r) }

// RootsFunc returns the CA bundle of the moment. It is called for every request: it must not block, and must return
// another pool rather than change one that it has returned. Nil means that there is none yet: requests
// are answered 503, and the system's roots are never used instead.
type RootsFunc func() *x509.CertPool

var errNoRoots = fmt.Errorf("%w: there is no CA bundle", core.ErrNotReady)

// PeerOptions are the optional parts of a [PeerSource]. The zero value is ready to use.
type PeerOptions struct {
	// Identity names the runtime that a checked certificate belongs to. Default: [CommonName].
	Identity IdentityFunc
	// CacheSize bounds how many checked certificates are remembered, at about 1 KiB each. Default: 16,384.
	CacheSize int
	// Now is the clock that validity is checked against. Default: [time.Now].
	Now func() time.Time

	// GatewayNames is for [FromXFCC] behind a sidecar (Istio), which appends an element of its own: what it says of its client, the gateway.
	// If set, that last element must carry one of these names as URI or DNS, and the runtime is looked for in the element
	// before it. Proxy then has to prove that the sender is the sidecar. Default: none, the last element is the runtime's.
	GatewayNames []string
}

const defaultCacheSize = 16 << 10

func (o PeerOptions) withDefaults() PeerOptions {
	if o.Identity == nil {
		o.Identity = CommonName
	}

	if o.CacheSize == 0 {
		o.CacheSize = defaultCacheSize
	}

	if o.Now == nil {
		o.Now = time.Now
	}

	return o
}

var errCacheSize = errors.New("PeerOptions.CacheSize is negative, want how many certificates to remember")

func (o PeerOptions) validate() error {
	if o.CacheSize < 0 {
		return errCacheSize
	}

	return nil
}

// validator is implemented by the parts of a listener that can be put together wrongly. [New] asks them.
type validator interface{ validate() error }

func validate(part any) error {
	if v, ok := part.(validator); ok {
		return v.validate()
	}

	return nil
}
