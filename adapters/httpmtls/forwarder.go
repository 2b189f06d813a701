// Package httpmtls sends events to the control plane over HTTPS with a client certificate.
//
// [Forwarder] implements [core.Forwarder]. It has one pool of reused connections, uses only TLS
// 1.3, and makes a few short retries. Its errors carry their classification for the outbox.
// [NewFallback] combines two forwarders for a control plane that may not support the newest
// contract. Package keys provides the key material.
//
// Nothing here restricts curves or cipher suites beyond TLS 1.3. The standard library chooses them,
// including in FIPS mode.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package httpmtls

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/connect"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// Forwarder is a [core.Forwarder] over HTTPS with a client certificate. Create one per control
// plane with [NewForwarder]. It is safe for concurrent use. All callers share its connections.
//
// A new generation of key material gets new connections. Requests in flight finish on the old
// connections.
//
// Each call of Forward makes one request. Its errors support [core.IsPermanent], [core.RetryAfter]
// and [core.ReasonOf]. The returned [core.EventErrors] contain [core.ErrNotSent] for each event
// that did not fit into the request. They contain a separate error for each event that the receiver
// refused or the contract cannot carry. Any other error concerns the whole batch, because of the
// sender, the manager or the path.
type Forwarder struct {
	// source is asked for each request, so that new material is used immediately.
	source  keys.Source
	address *url.URL
	version contract.Version
	opts    Options
	header  http.Header
	// slots contains one element per request in flight.
	slots chan struct{}

	mu     sync.Mutex
	pool   *pool // nil before the first request
	closed bool
	// rechecks contains the times of the last answers, by manager, without times that are 0.
	rechecks map[core.Manager]time.Duration
}

var _ core.Forwarder = (*Forwarder)(nil)

// NewForwarder returns a forwarder to the control plane at address, which is host, host:port or
// https://host:port. The host is a DNS name, in Unicode or Punycode, or an IP address. Upper case,
// a trailing dot of the name and the default port, 443, make no difference. NewForwarder does not
// use the network. It fails if the address, the contract or an option is invalid, and if source has
// no certificate or no CA bundle.
func NewForwarder(source keys.Source, address string, version contract.Version, opts Options) (*Forwarder, error) {
	target, err := connect.ParseAddress(address)
	if err != nil {
		return nil, fmt.Errorf("httpmtls: address %w", err)
	}

	// Routes of gateways have no port, and the default port means the same (RFC 9110, section
	// 4.2.3).
	target.Host = strings.TrimSuffix(target.Host, ":443")

	opts = opts.withDefaults(target.Hostname())
	if err := opts.validate(); err != nil {
		return nil, err
	}

	opts.ServerName, err = connect.ParseHost(opts.ServerName)
	if err != nil {
		return nil, fmt.Errorf("httpmtls: option ServerName: %w", err)
	}
	if _, err := contract.ParseVersion(string(version)); err != nil {
		return nil, fmt.Errorf("httpmtls: %w", err)
	}
	if _, err := keys.ClientTLSConfig(source, opts.ServerName); err != nil {
		return nil, err
	}

	return &Forwarder{
		source: source, address: target, version: version, opts: opts, slots: make(chan struct{}, opts.InFlight),
		header: http.Header{
			"Content-Type": {version.ContentType()},
			"User-Agent":   {opts.UserAgent},
			// An empty value is not sent, but it allows net/http to repeat a request on a
			// connection that the server has closed. An event may arrive twice.
			"Idempotency-Key": {},
		},
	}, nil
}

// identity returns the runtime of the option or of the present certificate, "" if there is neither.
func (f *Forwarder) identity() core.RuntimeID {
	if f.opts.Identity != "" {
		return f.opts.Identity
	}

	material, err := f.source.Material()
	if err != nil {
		return ""
	}

	certificate := material.Certificate
	if certificate == nil || certificate.Leaf == nil {
		return ""
	}

	return core.RuntimeID(certificate.Leaf.Subject.CommonName)
}

// Close closes all idle connections, and closes every other connection when its requests in flight
// end. It does not wait for these requests. Later requests fail. Close always returns nil.
func (f *Forwarder) Close() error {
	f.mu.Lock()
	old := f.pool
	f.pool = nil
	f.closed = true
	f.mu.Unlock()

	if old != nil {
		old.retireConns()
	}
	return nil
}

// acquirePool returns the connections of the present key material, with one request more. The
// caller must call endRequest of them.
func (f *Forwarder) acquirePool() (*pool, error) {
	material, err := f.source.Material()
	if err != nil {
		return nil, err // The caller wraps it.
	}

	used, old, err := f.usePool(material)
	if old != nil {
		f.opts.Logger.Info("key material has changed: new connections to the control plane use it",
			slog.String("fingerprint", material.Fingerprint))
		old.retireConns()
	}
	return used, err
}

// usePool returns the connections for material, with one request more, and the connections that
// they replace, nil if they replace none.
func (f *Forwarder) usePool(material *keys.Material) (used, old *pool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.closed {
		return nil, nil, errClosed
	}

	// A source returns the same pointer for the same generation.
	if f.pool == nil || f.pool.material != material {
		next, err := newPool(material, f.header, f.opts)
		if err != nil {
			return nil, nil, err
		}
		old = f.pool
		f.pool = next
	}
	f.pool.addRequest()
	return f.pool, old, nil
}

// leavePool gives up connections on which a request timed out, because they may be dead. Otherwise
// the next request would wait for a ping. Other requests on them continue.
func (f *Forwarder) leavePool(old *pool) {
	f.mu.Lock()
	if f.pool == old {
		f.pool = nil
	}
	f.mu.Unlock()
	old.abandonConns()
}
