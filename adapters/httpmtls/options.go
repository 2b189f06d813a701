package httpmtls

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Protocol is the version of HTTP that a [Forwarder] speaks.
type Protocol string

const (
	// HTTP2 carries all requests over one connection, and falls back to HTTP/1.1 where the server knows nothing else. A
	// connection that died silently is found by pings.
	HTTP2 Protocol = "h2"
	// HTTP1 is HTTP/1.1 with kept-alive connections, one request at a time on each. It takes both ends about a third less
	// processor time per request. A connection that died silently is found by the timeout of the request on it.
	HTTP1 Protocol = "http/1.1"
)

// The defaults of [Options].
const (
	DefaultProtocol          = HTTP2
	DefaultTimeout           = 10 * time.Second
	DefaultDialTimeout       = 5 * time.Second
	DefaultIdleTimeout       = 90 * time.Second
	DefaultPingAfter         = 15 * time.Second
	DefaultPingTimeout       = 5 * time.Second
	DefaultInFlightHTTP2     = 64
	DefaultInFlightHTTP1     = 8
	DefaultRetries           = 2
	DefaultRetryWait         = 50 * time.Millisecond
	DefaultRefusedRetryAfter = 30 * time.Second
	DefaultMaxRetryAfter     = 5 * time.Minute
	DefaultUserAgent         = "runtime-watcher"
)

// Options are the optional settings of a [Forwarder]. The zero value is the documented default.
type Options struct {
	// ServerName is what the server's certificate must be for. Default: the host of the address.
	ServerName string
	// Identity is who events of contract v3 claim to come from. A listener compares it with the certificate. Default: the Common Name of
	// the client certificate; an agent whose listeners identify runtimes otherwise says so here.
	Identity core.RuntimeID
	// Protocol is the version of HTTP. Default [DefaultProtocol]: an outbox has several requests in flight, and a fleet of runtimes
	// that comes back after an outage then costs the control plane one handshake each.
	Protocol Protocol
	// Timeout bounds one request with its short retries, from the dial to the last byte of the answer; the caller's context may end it earlier.
	// Default [DefaultTimeout].
	Timeout time.Duration
	// DialTimeout bounds the TCP connection, and once more the TLS handshake. Default [DefaultDialTimeout].
	DialTimeout time.Duration
	// IdleTimeout is how long an unused connection is kept. Default [DefaultIdleTimeout].
	IdleTimeout time.Duration
	// PingAfter is how long an HTTP/2 connection may be silent before it is asked for a sign of life, and PingTimeout how
	// long that may take. Defaults [DefaultPingAfter] and [DefaultPingTimeout].
	PingAfter   time.Duration
	PingTimeout time.Duration
	// InFlight bounds the requests under way at once; others wait. It also bounds the connections of HTTP/1.1. With HTTP/2 there is one, as
	// long as the server allows that many streams. Default [DefaultInFlightHTTP2] or [DefaultInFlightHTTP1].
	InFlight int
	// Retries is how often one request is sent again when the connection failed, or the answer was 502, or 503 without advice when to come back: what a
	// restart of a proxy or a closed idle connection causes. It never goes beyond the deadline. Default [DefaultRetries]; negative means never.
	Retries int
	// RetryWait is the wait before the first of these; it doubles, and half of it is random. Default [DefaultRetryWait].
	RetryWait time.Duration
	// RefusedRetryAfter is the wait that an answer of 401 or 403 without advice asks for: a rotation may be under way. Default
	// [DefaultRefusedRetryAfter]; negative means none.
	RefusedRetryAfter time.Duration
	// MaxRetryAfter caps the wait that a server asks for. Default [DefaultMaxRetryAfter].
	MaxRetryAfter time.Duration
	// UserAgent is sent with each request (RFC 9110, section 10.1.5). Default [DefaultUserAgent].
	UserAgent string
	// Proxy chooses a proxy, for example [http.ProxyFromEnvironment]. Default: none, whatever the environment says.
	Proxy func(*http.Request) (*url.URL, error)
	// DialContext makes the TCP connection. Default: a [net.Dialer] with keep-alive probes.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// Hooks are called as connections and retries happen.
	Hooks Hooks
	// Logger gets a line when connections are made with new key material. Default: discarded.
	Logger *slog.Logger
}

// Hooks are optional callbacks of a [Forwarder]. They are called concurrently, and must return at once.
type Hooks struct {
	// Connected is called for each attempt to make a TCP connection, with its error.
	Connected func(err error)
	// Retried is called before each short retry, with the status of the answer, or 0 when the connection failed.
	Retried func(status int)
}

func (o Options) withDefaults(host string) Options {
	o.ServerName = cmp.Or(o.ServerName, host)
	o.Protocol = cmp.Or(o.Protocol, DefaultProtocol)
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.DialTimeout = cmp.Or(o.DialTimeout, DefaultDialTimeout)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, DefaultIdleTimeout)
	o.PingAfter = cmp.Or(o.PingAfter, DefaultPingAfter)
	o.PingTimeout = cmp.Or(o.PingTimeout, DefaultPingTimeout)
	o.Retries = cmp.Or(o.Retries, DefaultRetries)
	o.RetryWait = cmp.Or(o.RetryWait, DefaultRetryWait)
	o.RefusedRetryAfter = cmp.Or(o.RefusedRetryAfter, DefaultRefusedRetryAfter)
	o.MaxRetryAfter = cmp.Or(o.MaxRetryAfter, DefaultMaxRetryAfter)
	o.UserAgent = cmp.Or(o.UserAgent, DefaultUserAgent)

	if o.InFlight == 0 {
		o.InFlight = DefaultInFlightHTTP2
		if o.Protocol == HTTP1 {
			o.InFlight = DefaultInFlightHTTP1
		}
	}

	if o.DialContext == nil {
		o.DialContext = o.dialer().DialContext
	}

	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}

	return o
}

// dialer probes idle connections, so that those that died silently are gone before a request is tried on each.
func (o Options) dialer() *net.Dialer {
	const probes = 3

	return &net.Dialer{
		Timeout: o.DialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: o.PingAfter, Interval: o.PingTimeout, Count: probes,
		},
	}
}

func (o Options) validate() error {
	if o.Protocol != HTTP2 && o.Protocol != HTTP1 {
		return fmt.Errorf("httpmtls: option Protocol is %.16q, want %q or %q", string(o.Protocol), HTTP2, HTTP1)
	}

	for _, setting := range []struct {
		name string
		have int64
	}{
		{"Timeout", int64(o.Timeout)},
		{"DialTimeout", int64(o.DialTimeout)},
		{"IdleTimeout", int64(o.IdleTimeout)},
		{"PingAfter", int64(o.PingAfter)},
		{"PingTimeout", int64(o.PingTimeout)},
		{"InFlight", int64(o.InFlight)},
		{"RetryWait", int64(o.RetryWait)},
		{"MaxRetryAfter", int64(o.MaxRetryAfter)},
	} {
		if setting.have <= 0 {
			return fmt.Errorf("httpmtls: option %s is %d, want more than 0", setting.name, setting.have)
		}
	}

	return nil
}
