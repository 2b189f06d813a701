package httpmtls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

const (
	http2 = "h2"
	http1 = "http/1.1"
)

// maxRetryAfter bounds the wait that a server asks for. A longer one is shortened.
const maxRetryAfter = 5 * time.Minute

// Options are the optional settings of a [Forwarder]. The zero value is the documented default.
type Options struct {
	// ServerName is the name to expect in the server's certificate. Default: the host of the
	// address.
	ServerName string
	// Identity is the runtime that events of contract v3 claim as their source. A listener compares
	// it with the certificate. Default: the Common Name of the client certificate.
	Identity core.RuntimeID
	// Protocol is the version of HTTP, by its name in ALPN. Default: "h2".
	//
	// "h2" carries all requests over one connection: each runtime costs the control plane one
	// handshake after an outage, however many requests it has in flight. Pings detect a dead
	// connection. If the server does not support HTTP/2, HTTP/1.1 is used.
	//
	// "http/1.1" reuses connections, with one request at a time on each. It takes a third less
	// processor time per request, and the listener needs a third less memory for an idle
	// connection. TCP probes and the timeout of a request detect a dead connection.
	Protocol string
	// Timeout bounds one request with its short retries, from the dial to the last byte of the
	// answer. The caller's context may end it earlier. Default: 10 s.
	Timeout time.Duration
	// DialTimeout bounds the TCP connection attempt and, separately, the TLS handshake. Default: 5
	// s.
	DialTimeout time.Duration
	// IdleTimeout is the time after which an unused connection is closed. Default: 90 s.
	IdleTimeout time.Duration
	// PingTimeout bounds the wait for the answer to a ping. It is also the interval between TCP
	// probes. Default: 5 s.
	PingTimeout time.Duration
	// InFlight bounds the requests in flight; further requests wait. It also bounds the number of
	// HTTP/1.1 connections. HTTP/2 needs one connection, unless the server allows fewer streams.
	// Default: 16 with HTTP/2, which is the number that a receiver grants to one runtime, and 8
	// with HTTP/1.1.
	InFlight int
	// Retries bounds the short retries of one request. A request is retried after a failed
	// connection, a 502, or a 503 without Retry-After, unless its deadline is too close. Default:
	// 2. Negative: none.
	Retries int
	// RefusedRetryAfter is the wait after 401 or 403 without Retry-After. The wait gives a
	// rotation of certificates time to finish. Default: 30 s. Negative: none.
	RefusedRetryAfter time.Duration
	// UserAgent is sent with each request (RFC 9110, section 10.1.5). Default:
	// "runtime-watcher".
	UserAgent string
	// Proxy chooses a proxy, for example [http.ProxyFromEnvironment]. Default: none, and the
	// environment is not read.
	Proxy func(*http.Request) (*url.URL, error)
	// DialContext opens the TCP connection. Default: a [net.Dialer] with keep-alive probes. After a
	// failed TLS handshake, the default dials the other addresses of the name first.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// Hooks are called for connections and retries.
	Hooks Hooks
	// Logger gets a line for connections with new key material. Default: discarded.
	Logger *slog.Logger

	// pingAfter is the silence after which an HTTP/2 connection is pinged. It is also the time
	// after which TCP probes an idle connection: 15 s, unless a test sets it.
	pingAfter time.Duration
	// retryWait is the wait before the first short retry. Each further wait is longer by this time,
	// and up to half of retryWait is subtracted at random. It is 50 ms, unless a test sets it.
	retryWait time.Duration
	// leaveAfter is the time of refusals after which a request gets new connections. It is 5 min,
	// unless a test sets it.
	leaveAfter time.Duration
	// resolver is the resolver of the system, unless a test sets it.
	resolver *net.Resolver

	// These two are shared by all connections of a forwarder.
	suspects     *suspects
	handshakeLog *slog.Logger
}

// Hooks are optional callbacks of a [Forwarder]. They are called concurrently and must return
// immediately.
type Hooks struct {
	// Connected is called for each attempt to open a TCP connection.
	Connected func(hook.Connection)
	// Disconnected is called after a connection that was in use has ended, for example because the
	// server closed it or a request timed out. It is not called for connections that the forwarder
	// closes itself because of Close or new key material.
	Disconnected func(hook.Disconnection)
	// Retried is called before each short retry.
	Retried func(hook.Retry)
}

func (o Options) withDefaults(host string) Options {
	o.pingAfter = cmp.Or(o.pingAfter, 15*time.Second)
	o.retryWait = cmp.Or(o.retryWait, 50*time.Millisecond)
	o.leaveAfter = cmp.Or(o.leaveAfter, 5*time.Minute)
	o = option.WithDefaults(o, Options{
		ServerName:        host,
		Protocol:          http2,
		Timeout:           10 * time.Second,
		DialTimeout:       5 * time.Second,
		IdleTimeout:       90 * time.Second,
		PingTimeout:       5 * time.Second,
		Retries:           2,
		RefusedRetryAfter: 30 * time.Second,
		UserAgent:         "runtime-watcher",
		Logger:            slog.New(slog.DiscardHandler),
		Hooks: Hooks{
			Connected:    func(hook.Connection) {},
			Disconnected: func(hook.Disconnection) {},
			Retried:      func(hook.Retry) {},
		},
	})

	inFlight := 16
	if o.Protocol == http1 {
		inFlight = 8
	}

	o.suspects = &suspects{}
	o.handshakeLog = pacedlog.New(o.Logger, time.Minute, "address")
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		return o.suspects.dialOthersFirst(ctx, o.newDialer(), network, address)
	}

	return option.WithDefaults(o, Options{InFlight: inFlight, DialContext: dial})
}

// newDialer probes idle connections, so that dead ones are closed before a request uses them.
func (o Options) newDialer() *net.Dialer {
	const probes = 3
	return &net.Dialer{
		Timeout:  o.DialTimeout,
		Resolver: o.resolver,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: o.pingAfter, Interval: o.PingTimeout, Count: probes,
		},
	}
}

// validate names all problems. Defaults must be set.
func (o Options) validate() error {
	o.Retries = 0
	o.RefusedRetryAfter = 0 // A negative one means none.

	isKnown := o.Protocol == http2 || o.Protocol == http1
	err := errors.Join(
		option.Unless(isKnown, "option Protocol is %.16q, want %q or %q", o.Protocol, http2, http1),
		option.NoneNegative(o),
	)
	if err != nil {
		return fmt.Errorf("httpmtls: %w", err)
	}

	return nil
}
