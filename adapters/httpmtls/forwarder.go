package httpmtls

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// Forwarder is a [core.Forwarder] over HTTPS with a client certificate. It sends [contract.Version.MaxEvents] events per
// request, one request after the other. Make one per control plane: its connections are shared by all callers and reused. A new
// generation of key material means new connections; requests under way end on the old ones.
//
// What concerns one event only (400, 403, 413, 415, and what can not be encoded) is reported as [core.EventErrors], what concerns
// the manager or the connection as an [*Error] for all, and then nothing more is sent. When some events were delivered
// before, the rest is named with that error instead, so that nothing is sent twice.
type Forwarder struct {
	source  Source
	address *url.URL
	version contract.Version
	opts    Options
	slots   chan struct{} // one per request under way

	mu     sync.Mutex
	pool   *pool // nil before the first request
	closed bool
}

var _ core.Forwarder = (*Forwarder)(nil)

var errClosed = errors.New("the forwarder is closed")

// NewForwarder returns a forwarder to the control plane at address, which is host, host:port or https://host:port, without touching the
// network. It fails on a wrong address, contract or option, and when source has no certificate and CA bundle.
func NewForwarder(source Source, address string, version contract.Version, opts Options) (*Forwarder, error) {
	target, err := parseAddress(address)
	if err != nil {
		return nil, err
	}

	opts = opts.withDefaults(target.Hostname())
	if err := opts.validate(); err != nil {
		return nil, err
	}

	if _, err := contract.ParseVersion(string(version)); err != nil {
		return nil, fmt.Errorf("httpmtls: %w", err)
	}

	if _, err := ClientTLSConfig(source, opts.ServerName); err != nil {
		return nil, err
	}

	return &Forwarder{source: source, address: target, version: version, opts: opts, slots: make(chan struct{}, opts.InFlight)}, nil
}

// Forward implements [core.Forwarder].
func (f *Forwarder) Forward(ctx context.Context, manager core.Manager, events []core.WatchEvent) error {
	if len(events) == 0 {
		return nil
	}

	// Once more, whoever made it: what follows puts it into a URL.
	manager, err := core.ParseManager(string(manager))
	if err != nil {
		return &Error{Method: http.MethodPost, URL: f.address.String(), Err: err, reason: ReasonInvalidManager, permanent: true}
	}

	target := f.address.JoinPath(f.version.Path(manager))
	result := result{total: len(events)}

	if f.version.Numbered() {
		events = f.claim(events)
	}

	for batch := range slices.Chunk(events, f.version.MaxEvents()) {
		if !result.add(len(batch), f.send(ctx, target, batch)) {
			break
		}
	}

	return result.err()
}

// claim returns the events with who we are and an id, where they do not say it themselves.
func (f *Forwarder) claim(events []core.WatchEvent) []core.WatchEvent {
	claimed := slices.Clone(events)
	source := f.identity()

	for i := range claimed {
		claimed[i].Source = cmp.Or(claimed[i].Source, source)

		if claimed[i].ID == "" {
			claimed[i].ID = rand.Text()
		}
	}

	return claimed
}

// identity is who the certificate of now says we are.
func (f *Forwarder) identity() core.RuntimeID {
	material, err := f.source.Material()
	if f.opts.Identity != "" || err != nil || material.Certificate == nil || material.Certificate.Leaf == nil {
		return f.opts.Identity
	}

	return core.RuntimeID(material.Certificate.Leaf.Subject.CommonName)
}

// Close closes all connections, those of requests under way as soon as they are done. It does not wait for them. Later
// requests fail. It returns nil.
func (f *Forwarder) Close() error {
	f.mu.Lock()
	old := f.pool
	f.pool, f.closed = nil, true
	f.mu.Unlock()

	if old != nil {
		old.retire()
	}

	return nil
}

// acquire returns the connections for the key material of now. The caller must release them.
func (f *Forwarder) acquire() (*pool, error) {
	material, err := f.source.Material()
	if err != nil {
		return nil, err //nolint:wrapcheck // The caller wraps it.
	}

	f.mu.Lock()
	defer f.mu.Unlock()

	if f.closed {
		return nil, errClosed
	}

	if f.pool == nil || f.pool.material != material {
		if err := f.renew(material); err != nil {
			return nil, err
		}
	}

	f.pool.use()

	return f.pool, nil
}

// leave gives up connections on which a request timed out, as they may be dead without a word: the next request shall not wait for a
// ping to find out. Those under way on them go on.
func (f *Forwarder) leave(old *pool) {
	f.mu.Lock()
	if f.pool == old {
		f.pool = nil
	}
	f.mu.Unlock()

	old.retire()
}

// renew swaps the connections. The caller holds the lock.
func (f *Forwarder) renew(material *Material) error {
	next, err := newPool(material, f.opts)
	if err != nil {
		return err
	}

	if f.pool != nil {
		f.opts.Logger.Info("new key material, new connections to the control plane", slog.String("fingerprint", material.Fingerprint))
		f.pool.retire()
	}

	f.pool = next

	return nil
}

// result collects what became of the events of one call.
type result struct {
	total     int
	seen      int
	delivered int
	events    core.EventErrors
	whole     error
}

// add notes what became of the next batch. It reports whether to go on.
func (r *result) add(size int, err error) bool {
	first := r.seen
	r.seen += size

	partial, isPartial := errors.AsType[core.EventErrors](err)

	switch {
	case err == nil:
		r.delivered += size
	case isPartial:
		r.delivered += size - len(partial)

		for index, failure := range partial {
			r.name(first+index, first+index+1, failure)
		}
	case size == 1 && concernsEvent(err):
		r.name(first, r.seen, err)
	case r.delivered > 0:
		r.name(first, r.total, err)

		return false
	default:
		r.whole = err

		return false
	}

	return true
}

func (r *result) name(from, to int, err error) {
	if r.events == nil {
		r.events = core.EventErrors{}
	}

	for i := from; i < to; i++ {
		r.events[i] = err
	}
}

func (r *result) err() error {
	switch {
	case r.whole != nil:
		return r.whole
	case len(r.events) > 0:
		return r.events
	default:
		return nil
	}
}

// concernsEvent reports whether another event may fare better with the same manager.
func concernsEvent(err error) bool {
	failure, ok := errors.AsType[*Error](err)

	return ok && (failure.permanent || failure.reason == ReasonForbidden)
}
