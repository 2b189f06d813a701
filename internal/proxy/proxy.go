// Package proxy makes connections through an HTTP proxy (CONNECT, RFC 9110, section 9.3.6). It is
// the one connection to a control plane behind a proxy, for every transport. The tunnel carries TLS
// that begins and ends at the two ends, so the proxy sees no event.
package proxy

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// The reasons of an [Error], as metric labels.
const (
	// ReasonUnreachable means that there is no connection to the proxy, or no answer of it.
	ReasonUnreachable = "proxy_unreachable"
	// ReasonUnauthorized means that the proxy refuses the credentials (407, or 401).
	ReasonUnauthorized = "proxy_unauthorized" //nolint:misspell // HTTP spells it so (RFC 9110, section 15.5.2).
	// ReasonRefused means that the proxy answers with another status than 2xx: it does not allow
	// the address, or does not reach it.
	ReasonRefused = "proxy_refused"
)

const (
	// dialTimeout bounds the connection to the proxy, and once more its answer.
	dialTimeout = 5 * time.Second
	// maxAnswer bounds the header of the answer, in bytes.
	maxAnswer = 16 << 10
	// maxCredentials bounds the file with the credentials, in bytes.
	maxCredentials = 4 << 10
	defaultPort    = "3128"
)

// Error is of a proxy, and not of the address behind it. A later attempt can succeed.
type Error struct {
	// Proxy is host:port.
	Proxy string
	// Status is that of the answer, 0 without an answer.
	Status int
	// Err is the cause without an answer.
	Err error
}

// Error names the proxy, and the status or the cause.
func (e *Error) Error() string {
	if e.Status != 0 {
		return fmt.Sprintf("proxy %s: status %d %s", e.Proxy, e.Status, http.StatusText(e.Status))
	}
	return fmt.Sprintf("proxy %s: %v", e.Proxy, reasons.Plain(e.Err))
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Reason returns the metric label.
func (e *Error) Reason() string {
	switch e.Status {
	case 0:
		return ReasonUnreachable
	case http.StatusProxyAuthRequired, http.StatusUnauthorized: // tinyproxy answers 401 to wrong ones.
		return ReasonUnauthorized
	default:
		return ReasonRefused
	}
}

// Options describe a proxy. The zero value is none.
type Options struct {
	// Address is http://host:port, or with user and password in it. The default port is 3128. TLS
	// to the proxy is not supported: the connection inside of the tunnel is TLS.
	Address string
	// Credentials is a file with user:password, such as a key of a mounted Secret. It is read for
	// each connection. Default: those in Address, or none.
	Credentials string
}

// Dialer connects through one proxy. Create it with [New]. It is safe for concurrent use.
type Dialer struct {
	proxy       *url.URL
	credentials string
	dial        func(ctx context.Context, network, address string) (net.Conn, error)
	// failure is that of the last attempt, nil after a success.
	failure atomic.Pointer[Error]
}

// New returns a dialer. It uses no network, and does not read the credentials.
func New(opts Options) (*Dialer, error) {
	proxy, err := Parse(opts.Address)
	if err != nil {
		return nil, err
	}
	const idle, interval, probes = 15 * time.Second, 5 * time.Second, 3
	direct := &net.Dialer{
		Timeout: dialTimeout,
		// The tunnel has no probes of its own, and a proxy may be gone without a word.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: idle, Interval: interval, Count: probes},
	}
	return &Dialer{proxy: proxy, credentials: opts.Credentials, dial: direct.DialContext}, nil
}

// Parse returns the URL of a proxy with its port. Its error does not repeat a password.
func Parse(address string) (*url.URL, error) {
	shown := address
	if strings.Contains(address, "@") {
		shown = "(with credentials)"
	}
	wrong := fmt.Errorf("%.128q: want http://host:port", shown)
	proxy, err := url.Parse(address)
	if err != nil || proxy.Scheme != "http" || proxy.Hostname() == "" {
		return nil, wrong
	}
	if strings.Trim(proxy.Path, "/") != "" || proxy.RawQuery != "" || proxy.Fragment != "" || proxy.Opaque != "" {
		return nil, wrong
	}

	port := proxy.Port()
	if port == "" && !strings.HasSuffix(proxy.Host, ":") {
		port = defaultPort
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		return nil, wrong
	}
	return &url.URL{Scheme: proxy.Scheme, User: proxy.User, Host: net.JoinHostPort(proxy.Hostname(), port)}, nil
}

// Address is host:port of the proxy.
func (d *Dialer) Address() string { return d.proxy.Host }

// Failure returns the error of the last attempt, nil after a success. A transport that hides the
// errors of its dials can name it.
func (d *Dialer) Failure() error {
	failure := d.failure.Load()
	if failure == nil {
		return nil // And no error with a nil in it.
	}
	return failure
}

// DialContext returns a connection to address, which the proxy makes and resolves. It blocks for at
// most 10 s, or until ctx ends. Its error is an [*Error], or that of ctx.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.tunnel(ctx, network, address)
	if err == nil {
		d.failure.Store(nil)
		return conn, nil
	}
	failure, ok := errors.AsType[*Error](err)
	if !ok {
		failure = &Error{Proxy: d.proxy.Host, Err: err}
	}
	d.failure.Store(failure)
	return nil, failure
}

func (d *Dialer) tunnel(ctx context.Context, network, address string) (net.Conn, error) {
	header, err := d.header()
	if err != nil {
		return nil, err
	}
	conn, err := d.dial(ctx, network, d.proxy.Host)
	if err != nil {
		return nil, err
	}

	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	tunnel, err := d.connect(conn, address, header)
	if !stop() && err == nil {
		err = ctx.Err() // The deadline of the connection is over, or soon will be.
	}
	if err == nil {
		return tunnel, nil
	}
	_ = conn.Close() // Nothing was sent on it.
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return nil, err
}

// connect sends the request, and returns the connection behind the answer.
func (d *Dialer) connect(conn net.Conn, address string, header http.Header) (net.Conn, error) {
	request := &http.Request{
		Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: header,
	}
	if err := request.Write(conn); err != nil {
		return nil, err
	}
	// Nothing but the proxy may write before the first bytes of TLS, except a NATS server.
	limited := &limitedReader{conn: conn, left: maxAnswer}
	reader := bufio.NewReader(limited)
	answer, err := http.ReadResponse(reader, request)
	if err != nil {
		return nil, err
	}
	const class = 100
	if answer.StatusCode/class != http.StatusOK/class {
		_ = answer.Body.Close() // The connection is closed as well.
		return nil, &Error{Proxy: d.proxy.Host, Status: answer.StatusCode}
	}
	if reader.Buffered() == 0 {
		return conn, nil
	}
	early, _ := reader.Peek(reader.Buffered()) // It returns the buffered bytes.
	return &tunnelConn{Conn: conn, early: append([]byte(nil), early...)}, nil
}

// header has the credentials (RFC 9110, section 11.7.2), if there are some.
func (d *Dialer) header() (http.Header, error) {
	header := http.Header{"User-Agent": {"runtime-watcher"}}
	credentials := ""
	if user := d.proxy.User; user != nil {
		password, _ := user.Password()
		credentials = user.Username() + ":" + password
	}
	if d.credentials != "" {
		text, err := ReadCredentials(d.credentials)
		if err != nil {
			return nil, err
		}
		credentials = text
	}
	if credentials != "" {
		header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(credentials)))
	}
	return header, nil
}

// ReadCredentials reads user:password from a file. Its error does not repeat the content.
func ReadCredentials(path string) (string, error) {
	text, err := os.ReadFile(path) //nolint:gosec // The operator of the agent names it.
	if err != nil {
		return "", fmt.Errorf("credentials of the proxy: %w", err)
	}
	credentials := strings.TrimRight(string(text), "\r\n")
	user, _, found := strings.Cut(credentials, ":")
	if !found || user == "" || len(credentials) > maxCredentials || strings.ContainsAny(credentials, "\r\n\x00") {
		return "", fmt.Errorf("credentials of the proxy: %s: want one line, user:password", path)
	}
	return credentials, nil
}

// tunnelConn returns the bytes that came with the answer of the proxy first.
type tunnelConn struct {
	net.Conn

	early []byte
}

func (c *tunnelConn) Read(b []byte) (int, error) {
	if len(c.early) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.early)
	c.early = c.early[n:]
	return n, nil
}

type limitedReader struct {
	conn net.Conn
	left int
}

var errLongAnswer = errors.New("the answer of the proxy is too long")

func (l *limitedReader) Read(b []byte) (int, error) {
	if l.left <= 0 {
		return 0, errLongAnswer
	}
	n, err := l.conn.Read(b[:min(len(b), l.left)])
	l.left -= n
	return n, err
}
