package httpmtls

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// suspectFor is the time for which an address with a failed handshake comes last.
const suspectFor = 5 * time.Minute

// errSuspect is the error of a dial to an address that has to wait for the others.
var errSuspect = errors.New("a TLS handshake failed there")

// suspects are the addresses of a name with which a TLS handshake failed. A [net.Dialer] takes the
// first address that accepts TCP. If a dead program or a path with a small MTU is behind it, the
// handshake fails each time, although another address of the name would answer.
type suspects struct {
	mu    sync.Mutex
	until map[string]time.Time // by IP address and port
}

func (s *suspects) add(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for other, until := range s.until {
		if now.After(until) {
			delete(s.until, other)
		}
	}
	if s.until == nil {
		s.until = make(map[string]time.Time)
	}
	s.until[address] = now.Add(suspectFor)
}

func (s *suspects) has(address string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.until[address])
}

func (s *suspects) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.until)
}

// dialOthersFirst dials the addresses that are not suspect, and then all.
func (o Options) dialOthersFirst(ctx context.Context, network, address string) (net.Conn, error) {
	var passedOver atomic.Bool // Two families of addresses are dialled in parallel.
	dialer := o.dialer()
	dialer.ControlContext = func(_ context.Context, _, address string, _ syscall.RawConn) error {
		if !o.suspects.has(address) {
			return nil
		}
		passedOver.Store(true)
		return errSuspect
	}

	conn, err := dialer.DialContext(ctx, network, address)
	if err == nil || !passedOver.Load() || ctx.Err() != nil {
		return conn, err
	}

	// No other address accepts a connection, so that each gets its turn again.
	o.suspects.clear()
	dialer.ControlContext = nil
	return dialer.DialContext(ctx, network, address)
}

// handshake follows the connection that one request dials, to know the address at which TLS failed.
// The context of the request carries it, because a dial may outlast its request.
type handshake struct {
	mu     sync.Mutex
	conn   *trackedConn // nil before the TCP connection
	failed string       // text of an error about the failed handshake, "" if none failed
}

type handshakeKey struct{}

// follow returns the context of a request with a handshake that p observes.
func (p *pool) follow(ctx context.Context) (context.Context, *handshake) {
	h := &handshake{}
	trace := &httptrace.ClientTrace{TLSHandshakeDone: func(_ tls.ConnectionState, err error) { h.done(p, err) }}
	return httptrace.WithClientTrace(context.WithValue(ctx, handshakeKey{}, h), trace), h
}

// beginHandshake stores the connection of a dial with the context of its request.
func beginHandshake(ctx context.Context, conn *trackedConn) {
	h, ok := ctx.Value(handshakeKey{}).(*handshake)
	if !ok {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conn = conn
}

// hintHello is for a path that drops a large ClientHello. The key of ML-KEM makes it about 1,500
// bytes.
const hintHello = "if the path drops packets above 1,400 bytes, GODEBUG=tlsmlkem=0 makes the ClientHello small"

func (h *handshake) done(p *pool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil || h.conn == nil || p.closesOnItsOwn() {
		return
	}

	address := h.conn.RemoteAddr().String()
	h.failed = "with " + address
	if isTimeout(err) && !h.conn.received.Load() {
		h.failed += ", which sent nothing: " + hintHello
	}
	p.suspects.add(address)
	p.log.Warn("TLS handshake with the control plane failed: the next connection tries the other addresses first",
		slog.String("address", address), slog.Any("error", &handshakeError{error: err, failed: h.failed}))
}

// explain adds the address to the error of a request with a failed handshake.
func (h *handshake) explain(err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed == "" {
		return err
	}
	return &handshakeError{error: err, failed: h.failed}
}

// handshakeError stays a timeout if it is one: [net/url.Error] asks the error that it wraps, and no
// other.
type handshakeError struct {
	error

	failed string
}

func (e *handshakeError) Error() string { return e.error.Error() + " " + e.failed }
func (e *handshakeError) Unwrap() error { return e.error }
func (e *handshakeError) Timeout() bool { return isTimeout(e.error) }

// closesOnItsOwn means that the pool has new key material, or was closed.
func (p *pool) closesOnItsOwn() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.retired && !p.left
}
