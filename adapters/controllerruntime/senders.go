package controllerruntime

import (
	"crypto/tls"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// Senders decides how runtimes prove their identity. [MutualTLS] and [BehindGateway] make it.
type Senders struct {
	peers    listener.Peers
	tls      *tls.Config
	material keys.Source
}

// MutualTLS is for runtimes that connect to the operator itself. The server presents the
// certificate of material and requires a client certificate from one of its CAs. The certificate
// and the CAs are read at each handshake, and the CAs also at each request, so that a rotation
// needs no restart.
//
// If material has a method Start, such as [keys.Files], the listener starts it. You need not add
// material to the controller manager.
func MutualTLS(material keys.Source) Senders {
	return Senders{
		peers:    listener.FromTLS(keys.Roots(material), listener.PeerOptions{}),
		tls:      keys.ServerTLSConfig(material),
		material: material,
	}
}

// BehindGateway is for a gateway that terminates TLS, with peers of [listener.FromXFCC]. The
// listener serves plain HTTP, unless the options of the listener have a TLS configuration. The
// listener does not start the key material that the peers read: add the key material to the
// controller manager.
//
// [listener.FromTLS] is also possible, together with the TLS configuration that it needs. It has
// options that [MutualTLS] lacks.
func BehindGateway(peers listener.Peers) Senders { return Senders{peers: peers} }
