package httpmtls

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// pool holds the connections of one generation of key material. It is safe for concurrent use.
type pool struct {
	material  *keys.Material
	client    *retryablehttp.Client
	transport *http.Transport
	hooks     Hooks
	suspects  *suspects // shared by all pools of a forwarder
	log       *slog.Logger

	mu sync.Mutex
	// refused is when the refusals since the last success began, zero without one.
	refused time.Time
	conns   map[*trackedConn]struct{}
	users   int
	// retired means that the pool takes no new requests, left that its connections may be dead.
	retired, left bool
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// newDial returns a function that makes connections of the pool.
func (p *pool) newDial(opts Options) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		// A dial belongs to no request: it may outlast the request that began it.
		conn, err := opts.DialContext(ctx, network, address)
		if err != nil {
			p.hooks.Connected(hook.Connection{Err: dialError{err}})
			return nil, err
		}

		p.hooks.Connected(hook.Connection{})
		tracked, err := p.trackConn(conn)
		if err != nil {
			return nil, err
		}

		beginHandshake(ctx, tracked)
		return tracked, nil
	}
}

type dialError struct{ error }

func (e dialError) Unwrap() error  { return e.error }
func (e dialError) Reason() string { return string(reasonOf(e.error)) }

// trackConn adds a connection. A retired pool without requests closes it: a dial may outlast its
// request.
func (p *pool) trackConn(conn net.Conn) (*trackedConn, error) {
	tracked := &trackedConn{
		Conn: conn, made: time.Now(), remove: p.removeConn, disconnected: p.hooks.Disconnected,
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	if p.retired && p.users == 0 {
		_ = conn.Close() // No request used it.
		return nil, errClosed
	}

	p.conns[tracked] = struct{}{}
	return tracked, nil
}

// removeConn is false for a connection that the pool closes for its own reasons.
func (p *pool) removeConn(c *trackedConn) (lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	_, had := p.conns[c]
	delete(p.conns, c)
	return had && !p.isClosing()
}

// isClosing means that the pool closes its connections itself: it has been replaced, or the
// forwarder was closed. The caller must hold the lock.
func (p *pool) isClosing() bool { return p.retired && !p.left }

// followHandshake returns the context of a request with a handshake that the pool observes.
func (p *pool) followHandshake(ctx context.Context) (context.Context, *handshake) {
	h := &handshake{}
	trace := &httptrace.ClientTrace{TLSHandshakeDone: func(_ tls.ConnectionState, err error) {
		if err != nil && !p.closesOnItsOwn() {
			p.noteFailedHandshake(h, err)
		}
	}}
	return httptrace.WithClientTrace(context.WithValue(ctx, handshakeKey{}, h), trace), h
}

// noteFailedHandshake makes the address of the handshake suspect.
func (p *pool) noteFailedHandshake(h *handshake, err error) {
	address, failed := h.noteFailure(err)
	if failed == nil {
		return
	}

	p.suspects.addAddress(address)
	p.log.Warn("TLS handshake with the control plane failed: the next connection tries the other addresses first",
		slog.String("address", address), slog.Any("error", failed))
}

// closesOnItsOwn means that the pool has new key material, or was closed.
func (p *pool) closesOnItsOwn() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.isClosing()
}

// addRequest counts a request in flight. The caller must call endRequest after it, once.
func (p *pool) addRequest() { p.changeState(func() { p.users++ }) }

func (p *pool) endRequest() { p.changeState(func() { p.users-- }) }

// retireConns ends the pool: its connections close when no request is in flight.
func (p *pool) retireConns() { p.changeState(func() { p.retired = true }) }

// abandonConns retires the pool, because its connections may be dead.
func (p *pool) abandonConns() {
	p.changeState(func() {
		p.retired = true
		p.left = true
	})
}

// changeState also closes the connections of a retired pool when no request is in flight. If it
// closed them earlier, net/http would leave requests waiting for a dial that another request began.
func (p *pool) changeState(state func()) {
	p.mu.Lock()
	state()
	isLast := p.retired && p.users == 0
	p.mu.Unlock()

	if isLast {
		p.closeAll()
	}
}

// noteAnswer notes the result of a request, and returns for how long all have been refusals.
func (p *pool) noteAnswer(err error) (refused time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()

	failed, isRefusal := errors.AsType[*requestError](err)
	concernsPath := isRefusal && !failed.permanent && failed.reason != reasons.TooFast
	if !concernsPath {
		p.refused = time.Time{}
		return 0
	}

	if p.refused.IsZero() {
		p.refused = time.Now()
	}
	return time.Since(p.refused)
}

// closeAll also closes connections that CloseIdleConnections leaves open, because the transport
// does not know yet that they are idle.
func (p *pool) closeAll() {
	p.transport.CloseIdleConnections()

	p.mu.Lock()
	conns := slices.Collect(maps.Keys(p.conns))
	p.mu.Unlock()

	for _, conn := range conns {
		_ = conn.Close() // No request uses it.
	}
}
