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
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
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
	// slots has one element per request in flight.
	slots chan struct{}

	mu     sync.Mutex
	pool   *pool // nil before the first request
	closed bool
	// rechecks has the times of the last answers, by manager, without those that are 0.
	rechecks map[core.Manager]time.Duration
}

var _ core.Forwarder = (*Forwarder)(nil)

var errClosed = errors.New("the forwarder is closed")

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

// Forward implements [core.Forwarder]. It blocks until the answer arrives, ctx ends or
// [Options.Timeout] has passed. An empty batch is not sent.
func (f *Forwarder) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	batch = f.prepare(batch)
	if batch.IsEmpty() {
		return nil
	}

	manager, err := core.ParseManager(string(manager)) // It becomes part of a URL.
	if err != nil {
		return permanent(f.address, core.ReasonInvalidManager, err)
	}

	target := &url.URL{Scheme: f.address.Scheme, Host: f.address.Host, Path: f.version.Path(manager)}
	encoded, err := f.version.Encode(&batch)
	if err != nil {
		return failure(target, ReasonMaterial, err) // The fault is the claim, and not an event.
	}
	encoded.Unsendable(func(err error) error { return permanent(target, ReasonUnsendable, err) })
	if encoded.Body == nil {
		return encoded.Failed
	}

	m := &message{Request: &encoded, events: len(batch.Events)}
	err = f.send(ctx, target, m)
	f.noteRecheck(manager, m.recheckAfter)
	return encoded.Result(err)
}

// RecheckAfter returns the delay after which the receiver requests another reconcile unless a
// reconcile has read the write, according to its last answer for the manager. It returns 0 if the
// last call failed, if the answer does not contain a delay, and before the first answer.
func (f *Forwarder) RecheckAfter(manager core.Manager) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rechecks[manager]
}

// noteRecheck keeps the times of at most [defaults.MaxManagers] managers. Strangers can invent
// names of managers.
func (f *Forwarder) noteRecheck(manager core.Manager, after time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.rechecks, manager)
	if after <= 0 {
		return
	}

	if len(f.rechecks) >= defaults.MaxManagers {
		clear(f.rechecks) // Their next answers bring the times back.
	}
	if f.rechecks == nil {
		f.rechecks = make(map[core.Manager]time.Duration)
	}
	f.rechecks[manager] = after
}

func (f *Forwarder) prepare(batch core.Batch) core.Batch {
	if f.version.Numbered() {
		return contract.Claim(batch, f.identity())
	}
	batch.Heartbeat = nil
	return batch
}

type message struct {
	*contract.Request

	events int
	// recheckAfter is that of an answer that acknowledges the request.
	recheckAfter time.Duration
}

func (m *message) index(element int) int { return m.Index(element, m.events) }

func permanent(target *url.URL, reason core.Reason, err error) error {
	failed := failure(target, reason, err)
	failed.permanent = true
	return failed
}

func (f *Forwarder) identity() core.RuntimeID {
	material, err := f.source.Material()
	if f.opts.Identity != "" || err != nil || material.Certificate == nil || material.Certificate.Leaf == nil {
		return f.opts.Identity
	}
	return core.RuntimeID(material.Certificate.Leaf.Subject.CommonName)
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
		old.retire()
	}
	return nil
}

func (f *Forwarder) acquire() (*pool, error) {
	material, err := f.source.Material()
	if err != nil {
		return nil, err // The caller wraps it.
	}
	used, old, err := f.use(material)
	if old != nil {
		f.opts.Logger.Info("new key material, new connections to the control plane",
			slog.String("fingerprint", material.Fingerprint))
		old.retire()
	}
	return used, err
}

// use returns the connections for material, and the connections that they replace, nil if there are
// none. The caller must release the former.
func (f *Forwarder) use(material *keys.Material) (used, old *pool, err error) {
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
	f.pool.use()
	return f.pool, old, nil
}

// leave gives up connections on which a request timed out, because they may be dead. Otherwise the
// next request would wait for a ping. Other requests on them continue.
func (f *Forwarder) leave(old *pool) {
	f.mu.Lock()
	if f.pool == old {
		f.pool = nil
	}
	f.mu.Unlock()
	old.leave()
}
