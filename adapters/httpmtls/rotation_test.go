package httpmtls_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

func TestRequestInFlightEndsOnTheOldConnection(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol string) {
		t.Helper()

		ends := newPKI(t)
		source := newSwitch(ends.client)
		reached := make(chan struct{})
		proceed := make(chan struct{})
		end := newFarEnd(t, ends.server, func(w http.ResponseWriter, r *http.Request) {
			if r.TLS.PeerCertificates[0].Equal(ends.client.Certificate.Leaf) {
				close(reached)
				<-proceed
			}
			accept(w, r)
		})
		forwarder := newForwarder(t, source, end.address(), unhurried(protocol))
		slow := make(chan error, 1)
		go func() { slow <- forward(t, forwarder, event("slow")) }()
		receive(t, reached)
		source.set(material(t, must(ends.ca.Client(runtime1, testpki.Options{})), ends.ca))
		if err := forward(t, forwarder, event("new")); err != nil {
			t.Errorf("with the new material: %v", err)
		}

		close(proceed)
		if err := receive(t, slow); err != nil {
			t.Errorf("with the old material: %v", err)
		}
		if n := end.connections.Load(); n != 2 {
			t.Errorf("%d connections, want 2", n)
		}

		check(t, forwarder.Close())
		end.awaitOpen(t, 0)
	})
}

// stalledLog is a sink that takes no line until it is released.
type stalledLog struct {
	slog.Handler

	reached, release chan struct{}
}

func (*stalledLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *stalledLog) Handle(context.Context, slog.Record) error {
	close(l.reached)
	<-l.release
	return nil
}

// The line about new key material holds up the request that writes it at most, and no other one.
func TestStalledLogHoldsUpNoOtherRequest(t *testing.T) {
	t.Parallel()

	ends := newPKI(t)
	source := newSwitch(ends.client)
	log := &stalledLog{slog.DiscardHandler, make(chan struct{}), make(chan struct{})}
	end := newFarEnd(t, ends.server, accept)
	forwarder := newForwarder(t, source, end.address(), httpmtls.Options{Logger: slog.New(log)})
	mustForward(t, forwarder, event("a"))
	source.set(material(t, must(ends.ca.Client(runtime1, testpki.Options{})), ends.ca))
	results := make(chan error, 2)
	go func() { results <- forward(t, forwarder, event("b")) }()
	<-log.reached
	go func() { results <- forward(t, forwarder, event("c")) }()
	select {
	case err := <-results:
		check(t, err)
		results <- nil
	case <-time.After(patience):
		t.Error("no request ended while a line was written, want the other one to end")
	}

	close(log.release)
	for range 2 {
		check(t, <-results)
	}
}

// TestRotation gives both ends new leaves and new CAs, one end after the other. Each event arrives,
// and no old connection stays. Package keys shows that broken files change nothing, and
// test/gateway rotates under load.
func TestRotation(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol string) {
		t.Helper()

		var issuer atomic.Value
		ends := newPKI(t)
		client := newSwitch(ends.client)
		server := newSwitch(ends.server)
		end := newFarEnd(t, server, func(w http.ResponseWriter, r *http.Request) {
			issuer.Store(r.TLS.PeerCertificates[0].Issuer.CommonName)
			accept(w, r)
		})
		forwarder := newForwarder(t, client, end.address(), unhurried(protocol))
		const generations = 4
		old := ends.ca
		for n := range generations {
			next := must(testpki.NewCA(fmt.Sprint("ca-", n), testpki.Options{}))
			for _, rotation := range []struct {
				issuer *testpki.CA
				trusts []*testpki.CA
			}{{old, []*testpki.CA{old, next}}, {next, []*testpki.CA{old, next}}, {next, []*testpki.CA{next}}} {
				server.set(material(t, must(rotation.issuer.Server("kcp", testpki.Options{})), rotation.trusts...))
				err := forward(t, forwarder, event("server"))
				client.set(material(t, must(rotation.issuer.Client(runtime1, testpki.Options{})), rotation.trusts...))
				if err := errors.Join(err, forward(t, forwarder, event("client"))); err != nil {
					t.Fatalf("generation %d: %v", n, err)
				}
			}

			if have, want := issuer.Load(), fmt.Sprint("ca-", n); have != want {
				t.Errorf("the certificate of the client is of %v, want %s", have, want)
			}

			old = next
		}

		end.awaitOpen(t, 1)
		if n := end.connections.Load(); n < 1+3*generations {
			t.Errorf("%d connections, want one for each certificate", n)
		}
	})
}
