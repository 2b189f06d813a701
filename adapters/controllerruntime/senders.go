package controllerruntime

import (
	"crypto/tls"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// Senders decides how runtimes prove their identity. Make it with [MutualTLS] or [BehindGateway].
type Senders struct {
	peers    listener.Peers
	tls      *tls.Config
	material keys.Source
}

// MutualTLS is for runtimes that connect to the operator itself. The server shows the certificate
// of material, and demands a client certificate of its CAs. Both are read at each handshake, and
// the CAs at each request, so that a rotation needs no restart.
//
// The listener starts a material that has a method Start, as [keys.Files] does. You need not add
// it to the controller manager.
func MutualTLS(material keys.Source) Senders {
	return Senders{
		peers:    listener.FromTLS(keys.Roots(material), listener.PeerOptions{}),
		tls:      keys.ServerTLSConfig(material),
		material: material,
	}
}

// BehindGateway is for a gateway that terminates TLS, with peers of [listener.FromXFCC]. The
// listener serves plain HTTP, unless the options of the listener have a TLS configuration. The
// listener does not start the key material that peers read: add it to the controller manager.
//
// Peers of [listener.FromTLS] are possible, too, beside the TLS configuration that they
// need. They have options that [MutualTLS] lacks.
func BehindGateway(peers listener.Peers) Senders { return Senders{peers: peers} }
