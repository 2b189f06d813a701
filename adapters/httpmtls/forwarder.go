package httpmtls

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// Forwarder is a [core.Forwarder] over HTTPS with a client certificate. Make one per control plane: all
// callers share its connections, which are reused. A new generation of key material means new
// connections; requests under way end on the old ones.
//
// Each Forward makes one request. Events that do not fit into it are named with [core.ErrNotSent], those
// that the receiver refuses for themselves or the contract cannot carry with an [*Error]. An [*Error] for
// the whole batch belongs to the sender, the manager or the path.
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
func (f *Forwarder) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	if f.version.Numbered() {
		batch = f.claim(batch)
	} else {
		batch.Heartbeat = nil
	}

	if batch.IsEmpty() {
		return nil
	}

	manager, err := core.ParseManager(string(manager)) // It becomes part of a URL.
	if err != nil {
		return &Error{Method: http.MethodPost, URL: f.address.String(), Err: err, reason: ReasonInvalidManager, permanent: true}
	}

	target := f.address.JoinPath(f.version.Path(manager))

	encoded, err := f.version.Encode(&batch)
	if err != nil {
		return failure(target, ReasonMaterial, err) // The fault is the claim, and not an event.
	}

	for i, err := range encoded.Failed {
		if !errors.Is(err, core.ErrNotSent) {
			encoded.Failed[i] = unsendable(target, err)
		}
	}

	if encoded.Body == nil {
		return encoded.Failed
	}

	return merge(encoded.Failed, f.send(ctx, target, &message{&encoded, len(batch.Events)}))
}

// message is an encoded batch on its way.
type message struct {
	*contract.Request

	events int // of the batch
}

// elements returns the number of elements in the body.
func (m *message) elements() int {
	if m.Heartbeat {
		return len(m.Sent) + 1
	}

	return len(m.Sent)
}

// index returns the index in the batch of an element of the body.
func (m *message) index(element int) int {
	if element < len(m.Sent) {
		return m.Sent[element]
	}

	return m.events
}

// merge joins the events that were not sent and the answer to the others.
func merge(unsent core.EventErrors, err error) error {
	refused, partial := errors.AsType[core.EventErrors](err)

	switch {
	case len(unsent) == 0, err != nil && !partial:
		return err
	case len(refused) == 0:
		return unsent
	}

	all := maps.Clone(unsent)
	maps.Copy(all, refused)

	return all
}

func unsendable(target *url.URL, err error) error {
	return &Error{Method: http.MethodPost, URL: target.String(), Err: err, reason: ReasonUnsendable, permanent: true}
}

// claim returns the batch with our identity, and with IDs where events have none.
func (f *Forwarder) claim(batch core.Batch) core.Batch {
	batch.Source = cmp.Or(batch.Source, f.identity())
	batch.Events = slices.Clone(batch.Events)

	for i := range batch.Events {
		if batch.Events[i].ID == "" {
			batch.Events[i].ID = rand.Text()
		}
	}

	return batch
}

// identity is the identity in the current certificate, unless the options state one.
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

	used, old, err := f.use(material)
	if old != nil {
		f.opts.Logger.Info("new key material, new connections to the control plane", slog.String("fingerprint", material.Fingerprint))
		old.retire()
	}

	return used, err
}

// use returns the connections for material, which the caller must release, and the connections that they replace, nil if there are
// none.
func (f *Forwarder) use(material *Material) (used, old *pool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.closed {
		return nil, nil, errClosed
	}

	if f.pool == nil || f.pool.material != material {
		next, err := newPool(material, f.opts)
		if err != nil {
			return nil, nil, err
		}

		old, f.pool = f.pool, next
	}

	f.pool.use()

	return f.pool, old, nil
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
