package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// nextResync waits until a resync arrives at the control plane.
func (kcp *controlPlane) nextResync(tb testing.TB) {
	tb.Helper()
	select {
	case <-kcp.resyncs:
	case <-time.After(patience):
		tb.Fatal("no resync arrived at the control plane")
	}
}

// A connection that the limit closes may have carried a review, so a resync stands in for it.
func TestClosedConnectionLeadsToAResync(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	kcp := newControlPlane(t, p, http.StatusOK)
	agent := start(t, p, env(p, kcp, "MANAGERS=widgets", "WEBHOOK_MAX_CONNECTIONS=1", "RESYNC_AGAIN=0s"))
	kcp.nextResync(t) // It is sent at the start.
	// A new connection of another address takes the slot of the first one, idle or busy.
	other := p.apiServer(t)
	transport, _ := other.Transport.(*http.Transport) // It is one.
	transport.DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext
	for _, client := range []*http.Client{p.apiServer(t), other} {
		review(t, client, agent.webhook, "one", true) // A dry run is no event.
	}
	line := agent.log.wait(t, "reviews may have been missed: a resync is requested", 1)[0]
	if line["level"] != "WARN" || line["closed_connections"] != 1.0 {
		t.Errorf("log %v, want a warning with one closed connection", line)
	}
	kcp.nextResync(t)
	agent.stop(t)
}

// A failed handshake at the webhook is logged with its address, and counted by its cause.
func TestFailedHandshakesAreReported(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	kcp := newControlPlane(t, p, http.StatusOK)
	agent := start(t, p, env(p, kcp))
	// An API server with an old CA bundle.
	dialer := &tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: newPKI(t).ca.Pool()}}
	if conn, err := dialer.DialContext(t.Context(), "tcp", agent.webhook); err == nil {
		_ = conn.Close()
		t.Fatal("the client accepts a certificate of another CA")
	}
	line := agent.log.wait(t, "TLS handshake failed", 1)[0]
	if line["level"] != "WARN" || line["cause"] != "bad_certificate" || line["server"] != "webhook" ||
		!strings.HasPrefix(fmt.Sprint(line["remote"]), "127.0.0.1:") || line["error"] == nil {
		t.Errorf("log %v, want a warning with cause, address and error", line)
	}
	_, scrape := agent.get(t, "http://"+agent.metrics+"/metrics")
	want := `runtime_watcher_agent_tls_handshake_failures_total{cause="bad_certificate"} 1`
	if !strings.Contains(scrape, want) {
		t.Errorf("no %s in the metrics", want)
	}
	agent.stop(t)
}
