package main

import (
	"net"
	"net/http"
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
	kcp, agent := startWith(t, http.StatusOK, "MANAGERS=widgets", "WEBHOOK_MAX_CONNECTIONS=1", "RESYNC_AGAIN=0s")
	p := agent.pki
	kcp.nextResync(t) // It is sent at the start.
	// A new connection of another address takes the slot of the first one, idle or busy.
	other := p.apiServer(t)
	transport, _ := other.Transport.(*http.Transport) // It is one.
	transport.DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext
	for _, client := range []*http.Client{p.apiServer(t), other} {
		review(t, client, agent.webhook, "one", true) // A dry run is no event.
	}
	n := 1 // On a busy machine, a stall may come before.
	for agent.log.wait(t, "reviews may have been missed: a resync is requested", n)[n-1]["closed_connections"] != 1.0 {
		n++
	}
	kcp.nextResync(t)
	agent.stop(t)
}
