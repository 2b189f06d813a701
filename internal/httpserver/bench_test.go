package httpserver

import (
	"context"
	"crypto/tls"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkReturn connects clients at once to a server that completes a fifth of them before they
// give up. They begin again after a random wait. It reports the handshakes that the server began
// for each client. Run it with -benchtime 1x.
func BenchmarkReturn(b *testing.B) {
	const clients, giveUp, work = 1500, time.Second, 3 * time.Millisecond
	ca := newAuthority(b)
	leaf := ca.issue(b)
	var begun atomic.Int64
	r := run(b, noContent, Options{MaxHandshakes: 1, TLS: &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			begun.Add(1)
			<-time.After(work)
			return &leaf, nil
		},
	}})
	client := &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1", NextProtos: []string{protoHTTP1}}
	for b.Loop() {
		var group sync.WaitGroup
		for range clients {
			group.Go(func() {
				for wait := giveUp / 5; !answers(b, r.Addr().String(), client, giveUp); wait = min(2*wait, 6*giveUp) {
					<-time.After(rand.N(wait)) // The benchmark measures such waits.
				}
			})
		}
		group.Wait()
	}
	b.ReportMetric(float64(begun.Load())/float64(b.N)/clients, "handshakes/client")
}

// answers reports whether a request had its answer in time. Its connection stays open until the
// end of the benchmark.
func answers(b *testing.B, address string, config *tls.Config, timeout time.Duration) bool {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), timeout)
	defer cancel()
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	b.Cleanup(func() { _ = conn.Close() })
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	_, err = conn.Read(make([]byte, 1))
	return err == nil
}
