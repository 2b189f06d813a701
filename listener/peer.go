package listener

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Peers identifies the senders of requests. It is made by [FromTLSWithRoots], [FromXFCC] or
// [PeersFunc]. The zero value is none.
type Peers struct {
	identify func(r *http.Request) (core.Peer, error)
	// ownsConnection means that the connection of a request is that of its runtime. It needs TLS.
	// Those of a gateway carry the requests of many runtimes.
	ownsConnection bool
	// behindGateway means that a gateway sends the requests.
	behindGateway bool
	// observeOnly means that the sender need not be the gateway.
	observeOnly bool
	// checkHandshake checks the certificate in the handshake, while the connection has a slot for
	// computing. It never fails the handshake: a request gets an answer with the cause. Nil:
	// nothing is checked there.
	checkHandshake func(state *tls.ConnectionState)
	// invalid is the error in the arguments of the constructor.
	invalid error
}

// PeersFunc returns peers that identify calls.
//
// It returns a peer with an ID, or an error. One that wraps [core.ErrUnauthenticated] is answered
// 401. Any other means that the sender is not known yet, and is answered 503. Its text goes to the
// log, never to the sender. It is called concurrently and must not block. An ID is refused as a
// name of [PeerOptions].Identity is.
func PeersFunc(identify func(r *http.Request) (core.Peer, error)) Peers {
	if identify == nil {
		return Peers{}
	}
	return Peers{identify: func(r *http.Request) (core.Peer, error) {
		peer, err := identify(r)
		if err == nil {
			err = checkIdentity(peer.ID)
		}
		if err != nil {
			return core.Peer{}, err
		}
		return peer, nil
	}}
}

// Peer returns the sender of a request.
func (p Peers) Peer(r *http.Request) (core.Peer, error) { return p.identify(r) }

var errPeersMissing = errors.New("peers are nil: want FromTLSWithRoots or FromXFCC")

// validateTLS checks a configuration that does not depend on the client.
func (p Peers) validateTLS(config *tls.Config) error {
	fixed := p.ownsConnection && config != nil && config.GetConfigForClient == nil
	return option.Unless(!fixed || config.ClientAuth != tls.NoClientCert,
		"Options.TLS asks for no client certificate, so that every sender would be refused: want a ClientAuth")
}

func (p Peers) validate() error {
	if p.identify == nil {
		return errPeersMissing
	}
	return p.invalid
}

var errNoRoots = fmt.Errorf("%w: there is no CA bundle", core.ErrNotReady)

// PeerOptions are the optional settings of [Peers]. The zero value is the documented default.
type PeerOptions struct {
	// Identity names the runtime of a verified certificate. It returns an error if the certificate
	// names none. A name is refused in the same way if it is blank, longer than 2048 bytes, or has
	// characters that cannot be printed. Default: the Common Name of its subject.
	Identity func(*x509.Certificate) (core.RuntimeID, error)
	// CacheSize bounds the verified certificates that are remembered, at about 1 KiB each.
	// Default: 16,384.
	CacheSize int
	// Now is the clock for validity. Default: [time.Now].
	Now func() time.Time

	// GatewayNames is for [FromXFCC] behind a sidecar, such as Istio's, which appends an element
	// about its client, the gateway. The last element must then have one of these names as URI or
	// DNS, and the element before it is the runtime's. Proxy must prove that the sender is the
	// sidecar. Default: none, the header must have one element.
	GatewayNames []string
	// ObserveOnly makes [FromXFCC] take the last certificate of a header that does not come from
	// the gateway, with a line to this logger and a reason, as function [ObserveOnly] does. It is
	// for a dry run: a process that has seen a certificate can pass for its runtime. Default: none.
	ObserveOnly *slog.Logger
}

func (o PeerOptions) withDefaults() PeerOptions {
	return option.WithDefaults(o, PeerOptions{Identity: commonName, CacheSize: 16 << 10, Now: time.Now})
}

func (o PeerOptions) validate() error {
	return option.NotNegative("PeerOptions.CacheSize", o.CacheSize)
}
