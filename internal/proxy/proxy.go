// Package proxy makes connections through an HTTP proxy (CONNECT, RFC 9110, section 9.3.6). Every
// transport uses it to reach a control plane behind a proxy. TLS runs end to end through the
// tunnel, so the proxy cannot read events.
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
	// ReasonUnreachable means that there is no connection to the proxy, or that the proxy does not
	// answer.
	ReasonUnreachable = "proxy_unreachable"
	// ReasonUnauthorized means that the proxy refuses the credentials (407, or 401), or that their
	// file cannot be used.
	ReasonUnauthorized = "proxy_unauthorized"
	// ReasonRefused means that the proxy does not allow the address: it answers with a status other
	// than 2xx and 5xx.
	ReasonRefused = "proxy_refused"
	// ReasonUpstream means that the proxy cannot reach the address, or fails itself (5xx).
	ReasonUpstream = "proxy_upstream"
)

const (
	// longest bounds an attempt, including the connection to the proxy and its answer.
	longest = 5 * time.Second
	// sameFailure is the time after an attempt without an answer in which another attempt fails
	// with the same error. Otherwise, requests that wait for one connection would hang one after
	// the other.
	sameFailure = 250 * time.Millisecond
	// maxAnswer bounds the header of the answer, in bytes.
	maxAnswer = 16 << 10
	// maxCredentials bounds the file with the credentials, in bytes.
	maxCredentials = 4 << 10
	defaultPort    = "3128"
	// environmentPort is the default port in HTTPS_PROXY, which many programs read.
	environmentPort = "80"
)

// Error is a failure of the proxy, and not of the address behind it. A later attempt can succeed.
type Error struct {
	// Proxy is host:port.
	Proxy string
	// Status is the HTTP status of the answer, or 0 without an answer.
	Status int
	// Err is the cause if there is no answer.
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
		if _, ok := errors.AsType[*credentialsError](e.Err); ok {
			return ReasonUnauthorized
		}
		return ReasonUnreachable
	case http.StatusProxyAuthRequired, http.StatusUnauthorized: // tinyproxy answers 401 to wrong credentials.
		return ReasonUnauthorized
	}

	if e.Status >= http.StatusInternalServerError {
		return ReasonUpstream
	}
	return ReasonRefused
}

// Options describe a proxy. The zero value means no proxy.
type Options struct {
	// Address is http://host:port or http://user:password@host:port. The default port is 3128. TLS
	// to the proxy is not supported: TLS runs inside the tunnel.
	Address string
	// Credentials is a file with user:password, such as a key of a mounted Secret. It is read for
	// each connection. Default: the credentials in Address, or none.
	Credentials string
	// Timeout bounds an attempt. Default and maximum: 5 s.
	Timeout time.Duration
}

// Dialer connects through one proxy. Create it with [New]. It is safe for concurrent use.
type Dialer struct {
	proxy       *url.URL
	credentials string
	timeout     time.Duration
	dial        func(ctx context.Context, network, address string) (net.Conn, error)
	// failure is the failure of the last attempt, or nil after a success.
	failure atomic.Pointer[failure]
}

// failure is an error and the time at which it was noticed.
type failure struct {
	*Error

	at time.Time
}

// New returns a dialer. It uses no network, and does not read the credentials.
func New(opts Options) (*Dialer, error) {
	proxy, err := Parse(opts.Address)
	if err != nil {
		return nil, err
	}

	timeout := longest
	if opts.Timeout > 0 {
		timeout = min(timeout, opts.Timeout)
	}

	const idle, interval, probes = 15 * time.Second, 5 * time.Second, 3
	direct := &net.Dialer{
		// The tunnel itself sends no probes, and a proxy may disappear without closing its
		// connections.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: idle, Interval: interval, Count: probes},
	}
	return &Dialer{proxy: proxy, credentials: opts.Credentials, timeout: timeout, dial: direct.DialContext}, nil
}

// Parse returns the URL of a proxy with its port. Its error does not repeat a password.
func Parse(address string) (*url.URL, error) { return parse(address, defaultPort) }

// parse adds the port if the address has none.
func parse(address, portIfNone string) (*url.URL, error) {
	shown := address
	if strings.Contains(address, "@") {
		shown = "(with credentials)"
	}

	wrong := fmt.Errorf("%.128q: want http://host:port", shown)
	proxy, err := url.Parse(address)
	if err != nil || proxy.Scheme != "http" || proxy.Hostname() == "" {
		return nil, wrong
	}

	// Only the host, the port and the credentials of a proxy have a meaning.
	hasMore := strings.Trim(proxy.Path, "/")+proxy.RawQuery+proxy.Fragment+proxy.Opaque != ""
	if hasMore {
		return nil, wrong
	}

	port := proxy.Port()
	if port == "" && !strings.HasSuffix(proxy.Host, ":") {
		port = portIfNone
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		return nil, wrong
	}

	return &url.URL{Scheme: proxy.Scheme, User: proxy.User, Host: net.JoinHostPort(proxy.Hostname(), port)}, nil
}

// ParseEnvironment returns the URL of the proxy in HTTPS_PROXY, by the rules that are common for
// this variable: http:// may be missing, and the default port is 80. Its error does not repeat a
// password.
func ParseEnvironment(value string) (*url.URL, error) {
	if !strings.Contains(value, "://") {
		value = "http://" + value
	}
	return parse(value, environmentPort)
}

// Address is host:port of the proxy.
func (d *Dialer) Address() string { return d.proxy.Host }

// Failure returns the error of the last attempt, or nil after a success. A transport that hides the
// errors of its dials can report this error.
func (d *Dialer) Failure() error {
	last := d.failure.Load()
	if last == nil {
		return nil // And no error with a nil in it.
	}
	return last.Error
}

// DialContext returns a connection to address through the proxy, which also resolves the name. It
// blocks for at most [Options.Timeout], or until ctx ends. Its error is an [*Error].
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	last := d.failure.Load()
	if last != nil && errors.Is(last.Err, context.DeadlineExceeded) && time.Since(last.at) < sameFailure {
		return nil, last.Error
	}

	conn, err := d.openTunnel(ctx, network, address)
	if err != nil {
		failed, ok := errors.AsType[*Error](err)
		if !ok {
			failed = &Error{Proxy: d.proxy.Host, Err: err}
		}

		d.failure.Store(&failure{failed, time.Now()})
		return nil, failed
	}

	d.failure.Store(nil)
	return conn, nil
}

// openTunnel connects to the proxy, and asks it for a connection to address.
func (d *Dialer) openTunnel(ctx context.Context, network, address string) (net.Conn, error) {
	header, err := d.connectHeader()
	if err != nil {
		return nil, err
	}

	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()

	conn, err := d.dial(ctx, network, d.proxy.Host)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, fmt.Errorf("%w (%w)", ctx.Err(), err) // Such as the look-up of the name.
	}
	if err != nil {
		return nil, err
	}

	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	tunnel, err := d.sendConnect(conn, address, header)
	if !stop() && err == nil {
		err = ctx.Err() // The deadline of the connection is over, or soon will be.
	}
	if err != nil {
		_ = conn.Close() // Nothing was sent on it.
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}

	return tunnel, nil
}

// sendConnect sends the request, and returns the connection behind the answer.
func (d *Dialer) sendConnect(conn net.Conn, address string, header http.Header) (net.Conn, error) {
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

// connectHeader returns a header with the credentials (RFC 9110, section 11.7.2), if there are any.
// It reads their file.
func (d *Dialer) connectHeader() (http.Header, error) {
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
		return "", &credentialsError{err}
	}

	credentials, err := ParseCredentials(text)
	if err != nil {
		return "", &credentialsError{fmt.Errorf("%s: %w", path, err)}
	}

	return credentials, nil
}

var errCredentials = errors.New("want one line, user:password")

// ParseCredentials returns user:password from the content of a file. Its error does not repeat the
// content.
func ParseCredentials(text []byte) (string, error) {
	credentials := strings.TrimRight(string(text), "\r\n")
	user, _, found := strings.Cut(credentials, ":")
	isOneLine := len(credentials) <= maxCredentials && !strings.ContainsAny(credentials, "\r\n\x00")
	if !found || user == "" || !isOneLine {
		return "", errCredentials
	}

	return credentials, nil
}

// credentialsError means that the file of the credentials cannot be used.
type credentialsError struct{ cause error }

func (e *credentialsError) Error() string { return "credentials of the proxy: " + e.cause.Error() }
func (e *credentialsError) Unwrap() error { return e.cause }

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

var errLongAnswer = errors.New("the answer from the proxy is too long")

func (l *limitedReader) Read(b []byte) (int, error) {
	if l.left <= 0 {
		return 0, errLongAnswer
	}

	n, err := l.conn.Read(b[:min(len(b), l.left)])
	l.left -= n
	return n, err
}
