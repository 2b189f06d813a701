package listener

import (
	"crypto/tls"
	"sync/atomic"
)

// checkHandshakes returns a copy of config, and of the configurations that it returns, that calls
// check in each handshake.
func checkHandshakes(config *tls.Config, check func(*tls.ConnectionState)) *tls.Config {
	h := handshakes{checkPeer: check}
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
	checkPeer func(*tls.ConnectionState)
	last      atomic.Pointer[hookedConfig]
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
	h.checkPeer(state)
}
