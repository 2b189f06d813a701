package httpmtls

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

const (
	// maxHeader bounds the header of an answer, in bytes.
	maxHeader = 64 << 10
	// headerTable bounds the headers of earlier requests that the server has to remember (RFC 7541,
	// section 4.2), in bytes. No header fits. It saves the server 4 KiB per connection.
	headerTable = 1
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

// newPool fails if the material lacks a part.
func newPool(material *keys.Material, header http.Header, opts Options) (*pool, error) {
	config, err := keys.ClientTLSConfig(material, opts.ServerName)
	if err != nil {
		return nil, err
	}
	p := &pool{
		material: material, conns: map[*trackedConn]struct{}{}, hooks: opts.Hooks,
		suspects: opts.suspects, log: opts.handshakeLog,
	}
	p.transport = newTransport(config, p.dial(opts), opts)
	p.client = newClient(p, header, opts)
	return p, nil
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// newTransport returns a transport with limits, which does not use the environment.
func newTransport(config *tls.Config, dial dialFunc, opts Options) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(opts.Protocol == http2)
	return &http.Transport{
		Proxy:               opts.Proxy,
		DialContext:         dial,
		TLSClientConfig:     config,
		TLSHandshakeTimeout: opts.DialTimeout,
		DisableCompression:  true,
		// One host, so these are limits of the pool.
		MaxConnsPerHost:        opts.connections(),
		MaxIdleConnsPerHost:    opts.connections(),
		IdleConnTimeout:        opts.IdleTimeout,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              protocols,
		HTTP2: &http.HTTP2Config{
			MaxEncoderHeaderTableSize: headerTable,
			SendPingTimeout:           opts.pingAfter,
			PingTimeout:               opts.PingTimeout,
			WriteByteTimeout:          opts.Timeout,
		},
	}
}

// connections returns 1 with HTTP/2, so that concurrent first requests share one dial.
func (o Options) connections() int {
	if o.Protocol == http1 {
		return o.InFlight
	}
	return 1
}

func (p *pool) dial(opts Options) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		// A dial belongs to no request: it may outlast the request that began it.
		conn, err := opts.DialContext(ctx, network, address)
		if err != nil {
			p.hooks.Connected(hook.Connection{Err: dialError{err}})
			return nil, err
		}
		p.hooks.Connected(hook.Connection{})
		tracked, err := p.track(conn)
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

// track takes none in a retired pool without requests: a dial may outlast its request.
func (p *pool) track(conn net.Conn) (*trackedConn, error) {
	tracked := &trackedConn{Conn: conn, pool: p, made: time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.retired && p.users == 0 {
		_ = conn.Close() // No request used it.
		return nil, errClosed
	}
	p.conns[tracked] = struct{}{}
	return tracked, nil
}

type trackedConn struct {
	net.Conn

	pool *pool
	made time.Time
	// received means that the other end has sent something.
	received atomic.Bool
}

func (c *trackedConn) Read(into []byte) (int, error) {
	n, err := c.Conn.Read(into)
	if n > 0 && !c.received.Load() {
		c.received.Store(true)
	}
	return n, err
}

func (c *trackedConn) Close() error {
	if c.pool.remove(c) {
		defer func() { c.pool.hooks.Disconnected(hook.Disconnection{Lasted: time.Since(c.made)}) }()
	}
	return c.Conn.Close()
}

// remove is false for a connection that the pool closes for its own reasons.
func (p *pool) remove(c *trackedConn) (lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, had := p.conns[c]
	delete(p.conns, c)
	return had && (!p.retired || p.left)
}

// use adds a request. The caller must call release after it, once.
func (p *pool) use() { p.change(func() { p.users++ }) }

func (p *pool) release() { p.change(func() { p.users-- }) }

func (p *pool) retire() { p.change(func() { p.retired = true }) }

// leave retires the pool, because its connections may be dead.
func (p *pool) leave() { p.change(func() { p.retired, p.left = true, true }) }

// change also closes the connections of a retired pool when no request is in flight. If it closed
// them earlier, net/http would leave requests waiting for a dial that another request began.
func (p *pool) change(state func()) {
	p.mu.Lock()
	state()
	last := p.retired && p.users == 0
	p.mu.Unlock()
	if last {
		p.closeAll()
	}
}

// noteAnswer notes the result of a request, and returns for how long all have been refusals.
func (p *pool) noteAnswer(err error) (refused time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()

	failed, isRefusal := errors.AsType[*requestError](err)
	if !isRefusal || failed.permanent || failed.reason == reasons.TooFast {
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

// keepAlive is a transport that keeps its connections after failures. It hides
// CloseIdleConnections, which retryablehttp calls after the last attempt. Otherwise, each request
// that ends in 503 would cost a handshake.
//
// It also sets the header, because [http.Client] clones that of each request, for redirects.
type keepAlive struct {
	pool   *pool
	header http.Header
}

func (k keepAlive) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx, shake := k.pool.follow(request.Context())
	request = request.WithContext(ctx) // The given one must not be changed.
	request.Header = k.header
	answer, err := k.pool.transport.RoundTrip(request)
	if err != nil {
		return nil, shake.explain(err)
	}
	if answer.StatusCode == http.StatusSwitchingProtocols {
		_ = answer.Body.Close() // It is the connection, and no deadline ends its reads.
		answer.Body = http.NoBody
	}
	if answer.ContentLength != 0 {
		answer.Body = drainedBody{answer.Body}
	}
	return answer, nil
}

// maxDrained bounds the bytes read from an answer so that its connection can be reused. Beyond
// that, a new connection is cheaper.
const maxDrained = 64 << 10

// drainedBody reads the rest of an answer when it is closed. Only then can HTTP/1.1 reuse the
// connection.
type drainedBody struct{ io.ReadCloser }

// Close reads at most maxDrained bytes and closes the body.
func (b drainedBody) Close() error {
	_, _ = io.CopyN(io.Discard, b.ReadCloser, maxDrained) // If it fails, the connection is not reused.
	return b.ReadCloser.Close()
}
