package httpmtls

import (
	"context"
	"net"
	"net/http"
	"sync"

	"github.com/hashicorp/go-retryablehttp"
)

// pool is the connections of one generation of key material.
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
	p.client = newClient(&roundTripper{p.transport}, opts)

	return p, nil
}

// connections is 1 with HTTP/2, so that requests which come at once do not dial at once.
func (o Options) connections() int {
	if o.Protocol == HTTP1 {
		return o.InFlight
	}

	return 1
}

func (p *pool) dial(opts Options) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := opts.DialContext(ctx, network, address)

		if opts.Hooks.Connected != nil {
			opts.Hooks.Connected(err)
		}

		if err != nil {
			return nil, err
		}

		return p.track(conn)
	}
}

// track keeps a connection until it is closed. A retired pool takes none: the dial may have begun long ago.
func (p *pool) track(conn net.Conn) (net.Conn, error) {
	tracked := &trackedConn{Conn: conn, pool: p}

	p.mu.Lock()
	defer p.mu.Unlock()

	if p.retired && p.users == 0 {
		_ = conn.Close() // Never used.

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

	return c.Conn.Close() //nolint:wrapcheck // It is the connection.
}

// use counts a request in, until release.
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

// retire closes the connections: now when nothing is under way, or else as soon as the last request has its answer. Not
// before: net/http would let requests that wait for a dial of others wait in vain.
func (p *pool) retire() {
	p.mu.Lock()
	p.retired = true
	last := p.users == 0
	p.mu.Unlock()

	if last {
		p.closeAll()
	}
}

// closeAll closes what CloseIdleConnections leaves: connections that the transport has not yet noticed to be idle.
func (p *pool) closeAll() {
	p.transport.CloseIdleConnections()

	p.mu.Lock()
	conns := make([]*trackedConn, 0, len(p.conns))

	for conn := range p.conns {
		conns = append(conns, conn)
	}
	p.mu.Unlock()

	for _, conn := range conns {
		_ = conn.Close() // Nobody waits for it.
	}
}
