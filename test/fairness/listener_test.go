package fairness

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

const (
	manager = core.Manager("kyma")
	loud    = core.RuntimeID("loud")
)

// listenerSettings are what the listener's process is told.
type listenerSettings struct {
	CA   []byte `json:"ca"`
	Cert []byte `json:"cert"`
	Key  []byte `json:"key"`
	// Unfair takes the share of each runtime away.
	Unfair bool `json:"unfair"`
}

// runListener serves until its input ends.
func runListener(ctx context.Context, w *wire) {
	var settings listenerSettings

	w.must(w.Decode(&settings))

	pair, err := tls.X509KeyPair(settings.Cert, settings.Key)
	w.must(err)

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(settings.CA)

	bound, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)

	opts := listener.Options{
		Listener: bound,
		TLS: &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
		},
	}

	if settings.Unfair {
		opts.RuntimeRate, opts.RuntimeBurst, opts.RuntimeInFlight = 1e9, 1e9, 1e9
	}

	handlers := map[core.Manager]core.Handler{manager: core.HandlerFunc(handle)}

	l, err := listener.New(listener.FromTLS(listener.PeerOptions{}), listener.InsecureAllowAll(), handlers, opts)
	w.must(err)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	go func() {
		w.must(w.Encode(bound.Addr().String()))

		var nothing any
		if errors.Is(w.Decode(&nothing), io.EOF) {
			cancel()
		}
	}()

	_ = l.Start(ctx) // The flood may be cut off.
}

// handle takes the time of an operator that answers from memory, and for the flooding runtime as long as one that waits for something slow. It
// costs no processor time to speak of.
func handle(ctx context.Context, d core.Delivery) error {
	took := time.Millisecond
	if d.Runtime == loud {
		took = time.Second
	}

	work := time.NewTimer(took)
	defer work.Stop()

	select {
	case <-work.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
