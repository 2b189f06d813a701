package httpmtls_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// side is one end of the connection: its secret volume, and its reader.
type side struct {
	*keys.Files

	volume *testpki.Volume
	issue  func(ca *testpki.CA) *testpki.Leaf
	issuer *testpki.CA
	trusts []*testpki.CA
}

func newSide(t *testing.T, ca *testpki.CA, issue func(ca *testpki.CA) *testpki.Leaf) *side {
	t.Helper()
	s := &side{volume: testpki.NewVolume(t.TempDir()), issue: issue, issuer: ca, trusts: []*testpki.CA{ca}}
	s.write(t)
	caPath, cert, key := s.volume.Paths()
	s.Files = must(keys.NewFiles(keys.Paths{CA: caPath, Certificate: cert, Key: key}, keys.FilesOptions{}))
	return s
}

// write issues a new leaf and writes all files.
func (s *side) write(t *testing.T) {
	t.Helper()
	if err := s.volume.Write(testpki.Files(s.issue(s.issuer), s.trusts...)); err != nil {
		t.Fatal(err)
	}
}

func (s *side) rotate(t *testing.T) {
	t.Helper()
	s.write(t)
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
}

// spoil writes a broken secret for a while.
func (s *side) spoil(t *testing.T) {
	t.Helper()
	content := testpki.Files(s.issue(s.issuer), s.trusts...)
	content["tls.key"] = bytes.TrimSuffix(content["tls.key"], []byte("-----END PRIVATE KEY-----\n"))
	if err := s.volume.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := s.Reload(); err == nil {
		t.Error("a broken key was taken")
	}
}

func TestRotationUnderLoad(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol string) {
		t.Helper()
		ca := must(testpki.NewCA("ca-0", testpki.Options{}))
		server := newSide(t, ca, func(ca *testpki.CA) *testpki.Leaf {
			return must(ca.Server("kcp", testpki.Options{}))
		})
		client := newSide(t, ca, func(ca *testpki.CA) *testpki.Leaf {
			return must(ca.Client(runtime1, testpki.Options{}))
		})
		var (
			group     sync.WaitGroup
			delivered atomic.Int64
			peers     sync.Map
		)
		end := newFarEnd(t, server, func(w http.ResponseWriter, r *http.Request) {
			peers.Store(r.TLS.PeerCertificates[0].SerialNumber.String(), r.TLS.PeerCertificates[0].Issuer.CommonName)
			accept(w, r)
		})
		forwarder := newForwarder(t, client, end.address(), unhurried(protocol))
		stop := make(chan struct{})
		for range 8 {
			group.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if err := forward(t, forwarder, event("object")); err != nil {
						t.Errorf("not delivered: %v", err)
						return
					}
					delivered.Add(1)
				}
			})
		}
		// flow waits until events pass with the present ends.
		flow := func() {
			deadline := time.Now().Add(patience)
			for from := delivered.Load(); delivered.Load() < from+25 && !t.Failed(); {
				if time.Now().After(deadline) {
					t.Error("nothing is delivered any more")
				}
				if err := forward(t, forwarder, event("pace")); err != nil {
					t.Errorf("not delivered: %v", err)
				}
			}
		}
		const rounds = 3
		for round := range rounds {
			flow()
			client.rotate(t)
			flow()
			server.rotate(t)
			flow()
			old, next := server.issuer, must(testpki.NewCA(fmt.Sprint("ca-", round+1), testpki.Options{}))
			for _, s := range []*side{server, client} { // Both trust both,
				s.trusts = []*testpki.CA{old, next}
				s.rotate(t)
				flow()
			}
			for _, s := range []*side{server, client} { // then both are of the new one,
				s.spoil(t)
				flow()
				s.issuer = next
				s.rotate(t)
				flow()
			}
			for _, s := range []*side{server, client} { // and then the old one goes.
				s.trusts = []*testpki.CA{next}
				s.rotate(t)
				flow()
			}
		}
		close(stop)
		group.Wait()
		issuers := map[any]bool{}
		peers.Range(func(_, issuer any) bool {
			issuers[issuer] = true
			return true
		})
		if len(issuers) != rounds+1 {
			t.Errorf("client certificates of %d CAs were seen, want %d: rotation did not reach the connections",
				len(issuers), rounds+1)
		}
		if err := forwarder.Close(); err != nil {
			t.Fatal(err)
		}
		end.awaitOpen(t, 0)
		t.Logf("%d delivered over %d connections", delivered.Load(), end.connections.Load())
	})
}

func TestRequestInFlightEndsOnTheOldConnection(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol string) {
		t.Helper()
		ends := newPKI(t)
		source := &switchSource{}
		source.set(ends.client)
		reached, proceed := make(chan struct{}), make(chan struct{})
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
		if err := forwarder.Close(); err != nil {
			t.Fatal(err)
		}
		end.awaitOpen(t, 0)
	})
}

// A request with the old certificate may be in flight when the far end does not trust it any more.
func TestRefusedAfterRotationIsTriedWithTheNewMaterial(t *testing.T) {
	t.Parallel()
	for _, refusal := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		t.Run(strconv.Itoa(refusal), func(t *testing.T) {
			t.Parallel()
			ends := newPKI(t)
			source := &switchSource{}
			source.set(ends.client)
			next := material(t, must(ends.ca.Client(runtime1, testpki.Options{})), ends.ca)
			var requests atomic.Int64
			end := newFarEnd(t, ends.server, func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				if r.TLS.PeerCertificates[0].Equal(ends.client.Certificate.Leaf) {
					source.set(next)
					w.WriteHeader(refusal)
					return
				}
				accept(w, r)
			})
			err := forward(t, newForwarder(t, source, end.address(), httpmtls.Options{}), event("object"))
			if err != nil {
				t.Errorf("not delivered: %v", err)
			}
			if n := requests.Load(); n != 2 {
				t.Errorf("%d requests, want one with each certificate", n)
			}
		})
	}
}

func TestOldConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol string) {
		t.Helper()
		ends := newPKI(t)
		source := &switchSource{}
		source.set(ends.client)
		end := newFarEnd(t, ends.server, accept)
		forwarder := newForwarder(t, source, end.address(), unhurried(protocol))
		const generations = 20
		for range generations {
			source.set(material(t, must(ends.ca.Client(runtime1, testpki.Options{})), ends.ca))
			if err := forward(t, forwarder, event("object")); err != nil {
				t.Fatal(err)
			}
		}
		end.awaitOpen(t, 1)
		if n := end.connections.Load(); n != generations {
			t.Errorf("%d connections for %d generations", n, generations)
		}
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
	source := &switchSource{}
	source.set(ends.client)
	log := &stalledLog{slog.DiscardHandler, make(chan struct{}), make(chan struct{})}
	end := newFarEnd(t, ends.server, accept)
	forwarder := newForwarder(t, source, end.address(), httpmtls.Options{Logger: slog.New(log)})
	if err := forward(t, forwarder, event("a")); err != nil {
		t.Fatal(err)
	}
	source.set(material(t, must(ends.ca.Client(runtime1, testpki.Options{})), ends.ca))
	results := make(chan error, 2)
	go func() { results <- forward(t, forwarder, event("b")) }()
	<-log.reached
	go func() { results <- forward(t, forwarder, event("c")) }()
	select {
	case err := <-results:
		if err != nil {
			t.Error(err)
		}
		results <- nil
	case <-time.After(patience):
		t.Error("no request ended while a line was written, want the other one to end")
	}
	close(log.release)
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}
