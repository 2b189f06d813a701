package httpmtls

import (
	"context"
	"net"
	"net/http"
	"sync"

	"github.com/hashicorp/go-retryablehttp"
)

// pool holds the connections of one generation of key material.
type pool struct {
	material  *Material
	client    *retryablehttp.Client
	transport *http.Transport

	mu      sync.Mutex
	conns   map[*trackedConn]struct{}
	users   int
	retired bool
}

func newPool(material *Material, opts Options) (*pool, error) {
	config, err := ClientTLSConfig(material, opts.ServerName)
	if err != nil {
		return nil, err
	}

	const maxHeader = 64 << 10

	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(opts.Protocol == HTTP2)

	p := &pool{material: material, conns: map[*trackedConn]struct{}{}}
	p.transport = &http.Transport{
		Proxy:                  opts.Proxy,
		DialContext:            p.dial(opts),
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    opts.DialTimeout,
		DisableCompression:     true,
		MaxConnsPerHost:        opts.connections(),
		MaxIdleConnsPerHost:    opts.connections(),
		IdleConnTimeout:        opts.IdleTimeout,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              protocols,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout:  opts.PingAfter,
			PingTimeout:      opts.PingTimeout,
			WriteByteTimeout: opts.Timeout,
		},
	}
	p.client = newClient(p.transport, opts)

	return p, nil
}

// connections returns 1 with HTTP/2, so that concurrent first requests share one dial.
func (o Options) connections() int {
	if o.Protocol == HTTP1 {
		return o.InFlight
	}

	return 1
}

func (p *pool) dial(opts Options) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := opts.DialContext(ctx, network, address)
		opts.connected(err)

		if err != nil {
			return nil, err
		}

		return p.track(conn)
	}
}

func (o Options) connected(err error) {
	switch {
	case o.Hooks.Connected == nil:
	case err == nil:
		o.Hooks.Connected(nil)
	default:
		o.Hooks.Connected(dialError{err})
	}
}

// dialError adds the reason under which an [*Error] reports the same failure.
type dialError struct{ error }

func (e dialError) Unwrap() error  { return e.error }
func (e dialError) Reason() string { return reasonOf(e.error) }

// track adds a connection until it is closed. A retired pool without requests takes none, as a
// dial may outlast its request.
func (p *pool) track(conn net.Conn) (net.Conn, error) {
	tracked := &trackedConn{Conn: conn, pool: p}

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
}

func (c *trackedConn) Close() error {
	c.pool.mu.Lock()
	delete(c.pool.conns, c)
	c.pool.mu.Unlock()

	return c.Conn.Close()
}

// use adds a request. The caller must call release after it.
func (p *pool) use() {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.users++
}

func (p *pool) release() {
	p.mu.Lock()
	p.users--
	last := p.retired && p.users == 0
	p.mu.Unlock()

	if last {
		p.closeAll()
	}
}

// retire closes the connections once no request is under way. Earlier, net/http would leave
// requests waiting for a dial that another request began.
func (p *pool) retire() {
	p.mu.Lock()
	p.retired = true
	last := p.users == 0
	p.mu.Unlock()

	if last {
		p.closeAll()
	}
}

// closeAll also closes the connections that CloseIdleConnections leaves, as the transport does not
// know yet that they are idle.
func (p *pool) closeAll() {
	p.transport.CloseIdleConnections()

	p.mu.Lock()
	conns := make([]*trackedConn, 0, len(p.conns))

	for conn := range p.conns {
		conns = append(conns, conn)
	}
	p.mu.Unlock()

	for _, conn := range conns {
		_ = conn.Close() // No request uses it.
	}
}
