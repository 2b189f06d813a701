package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// A pod kept its runtime fresh by one review in 10 min, although the API server called nothing.
func TestHeartbeatsReportFailedHandshakesAndNoReviewOfAStranger(t *testing.T) {
	t.Parallel()
	kcp, s := startWith(t, http.StatusOK, "MANAGERS=widgets", "HEARTBEAT_INTERVAL=50ms")
	kcp.awaitBeat(t, func(b *core.Heartbeat) bool { return b.LastReview.IsZero() && b.WebhookFailures == 0 })
	var failures int64
	s.review(t, "ignored", true) // Any pod can send one.
	// A scanner of ports is no evidence.
	scanner := must((&net.Dialer{}).DialContext(t.Context(), "tcp", s.webhook))(t)
	if _, err := scanner.Write([]byte("GET / HTTP/1.0\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	s.log.wait(t, "TLS handshake failed", 1)
	_ = scanner.Close() // It was answered.
	// An API server with an old caBundle.
	stranger := &tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: newPKI(t).ca.Pool()}}
	if conn, err := stranger.DialContext(t.Context(), "tcp", s.webhook); err == nil {
		_ = conn.Close()
		t.Fatal("the client accepts a certificate of another CA")
	}
	line := s.log.wait(t, "TLS handshake failed", 2)[1]
	if line["level"] != "WARN" || line["cause"] != "bad_certificate" || line["server"] != "webhook" ||
		!strings.HasPrefix(fmt.Sprint(line["remote"]), "127.0.0.1:") || line["error"] == nil {
		t.Errorf("log %v, want a warning with cause, address and error", line)
	}
	if count(t, s.scrape(t), `runtime_watcher_agent_tls_handshake_failures_total\{cause="bad_certificate"\}`) != 1 {
		t.Error("the failed handshake is not counted by its cause")
	}
	kcp.drain()
	var proof time.Time
	for range 3 {
		kcp.awaitBeat(t, func(b *core.Heartbeat) bool { failures, proof = b.WebhookFailures, b.LastReview; return true })
	}
	if failures != 1 || !proof.IsZero() {
		t.Errorf("heartbeats report %d failed handshakes, proof %v, want that of the API server only, and no proof", failures, proof)
	}
	s.stop(t)
}

// An API server would reject this certificate, and nothing else would show it before the first
// write.
func TestACertificateThatCannotServeIsLogged(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		opts testpki.Options
		want string // empty: no warning
	}{
		"client only": {
			testpki.Options{Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
			"extended key usage without serverAuth, want serverAuth or none",
		},
		"both": {testpki.Options{Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPKI(t)
			p.write(t, must(p.ca.Server("runtime-1", test.opts))(t))
			s := start(t, p, env(p, newControlPlane(t, p, http.StatusOK)))
			lines, _ := s.log.all("API servers reject the certificate of the webhook")
			s.stop(t)
			if got := fmt.Sprint(lines); (len(lines) > 0) != (test.want != "") || !strings.Contains(got, test.want) {
				t.Errorf("log %v, want %q", lines, test.want)
			}
		})
	}
}
