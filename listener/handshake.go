package listener

import (
	"crypto/tls"
	"sync/atomic"
)

// handshakeChecker is implemented by [Peers] that check certificates in the handshake, while the
// connection has a slot for computing. It never fails the handshake: a request gets an answer with
// the cause.
type handshakeChecker interface {
	checkHandshake(state *tls.ConnectionState)
}

// checkHandshakes returns a copy of config, and of the configurations that it returns, that calls
// checker in each handshake.
func checkHandshakes(config *tls.Config, checker handshakeChecker) *tls.Config {
	h := handshakes{checker: checker}
	config = h.hook(config)
	if next := config.GetConfigForClient; next != nil {
		config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := next(hello)
			if err != nil || chosen == nil {
				return nil, err
			}
			return h.hooked(chosen), nil
		}
	}
	return config
}

type handshakes struct {
	checker handshakeChecker
	last    atomic.Pointer[hookedConfig]
}

type hookedConfig struct{ from, to *tls.Config }

// hooked returns one copy for successive handshakes with the same config: clients resume sessions
// only with the ticket keys of that copy.
func (h *handshakes) hooked(config *tls.Config) *tls.Config {
	if last := h.last.Load(); last != nil && last.from == config {
		return last.to
	}
	last := &hookedConfig{config, h.hook(config)}
	h.last.Store(last)
	return last.to
}

func (h *handshakes) hook(config *tls.Config) *tls.Config {
	config = config.Clone()
	first := config.VerifyConnection
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if first != nil {
			if err := first(state); err != nil {
				return err
			}
		}
		h.check(&state)
		return nil
	}
	return config
}

// check drops a panic of the operator's code. The first request has it again, and is answered 503.
func (h *handshakes) check(state *tls.ConnectionState) {
	defer func() { _ = recover() }()
	h.checker.checkHandshake(state)
}
