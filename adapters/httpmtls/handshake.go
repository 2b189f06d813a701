package httpmtls

import (
	"context"
	"sync"
)

// handshake follows the connection that one request dials, to know the address at which TLS failed.
// The context of the request carries it, because a dial may outlast its request.
type handshake struct {
	mu     sync.Mutex
	conn   *trackedConn // nil before the TCP connection
	failed string       // text of an error about the failed handshake, "" if none failed
}

type handshakeKey struct{}

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

// noteFailure keeps the error of a handshake with the address. It returns that address and the
// error with it, and nothing if there is no TCP connection.
func (h *handshake) noteFailure(err error) (address string, failed error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.conn == nil {
		return "", nil
	}

	address = h.conn.RemoteAddr().String()
	h.failed = "with " + address
	if isTimeout(err) && !h.conn.received.Load() {
		h.failed += ", which sent nothing: " + hintHello
	}

	return address, &handshakeError{error: err, failed: h.failed}
}

// explainError adds the address to the error of a request with a failed handshake.
func (h *handshake) explainError(err error) error {
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
