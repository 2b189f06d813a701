package listener_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// A verifier that is tried takes each event, and names each runtime and reason once.
func TestObserveOnly(t *testing.T) {
	var out bytes.Buffer
	domains := listener.DomainsFunc(func(_ context.Context, runtime core.RuntimeID, _ *core.WatchEvent) (string, error) {
		if runtime == "unknown" {
			return "", errors.New("not known yet")
		}
		return "right.example.com", nil
	})
	dry := listener.ObserveOnly(listener.SANPinning(domains), slog.New(slog.NewTextHandler(&out, nil)))
	for _, peer := range []core.Peer{
		{ID: "right", DNSNames: []string{"right.example.com"}},
		{ID: "wrong", DNSNames: []string{"wrong.example.com"}},
		{ID: "wrong", DNSNames: []string{"wrong.example.com"}},
		{ID: "unknown"},
	} {
		if err := dry.Verify(t.Context(), peer, &core.WatchEvent{}); err != nil {
			t.Errorf("%s: %v, want no error", peer.ID, err)
		}
	}
	text := out.String()
	if n := strings.Count(text, "level=WARN"); n != 2 {
		t.Errorf("%d lines, want 2:\n%s", n, text)
	}
	for _, want := range []string{"runtime=wrong reason=san_mismatch", "runtime=unknown reason=other"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// A listener that only observes takes what does not come from the gateway, too, and its hook gets
// the reason. The certificate must be one of the CA all the same.
func TestObserveOnlyOfTheGateway(t *testing.T) {
	ca, stranger := newAuthority(t, "ca"), newAuthority(t, "stranger")
	domains := listener.DomainsFunc(func(context.Context, core.RuntimeID, *core.WatchEvent) (string, error) {
		return "right.example.com", nil
	})
	right, wrong := ca.client(t, "right", dnsNames("right.example.com")).header(), ca.client(t, "wrong").header()
	named := []string{"spiffe://cluster.local/ns/istio-system/sa/istio-ingressgateway-service-account"}
	foreign := stranger.client(t, "right").header()
	const (
		inside, outside = "127.0.0.6:1", "192.0.2.1:1"
		sidecar, other  = "," + envoyElement, `,Hash=1;Subject="";URI=spiffe://other.local/gateway`
	)
	for name, test := range map[string]struct {
		remote, header string
		status         int
		reason, logged string
	}{
		"the gateway":           {inside, right + sidecar, http.StatusOK, "", ""},
		"of another name":       {inside, right + other, http.StatusOK, "untrusted_proxy", `other.local/gateway\"]`},
		"without a sidecar":     {outside, right, http.StatusOK, "untrusted_proxy", "not in the ranges"},
		"another domain":        {inside, wrong + sidecar, http.StatusOK, "san_mismatch", "runtime=wrong"},
		"without a certificate": {outside, envoyElement, http.StatusUnauthorized, "no_certificate", ""},
		"another CA":            {outside, foreign, http.StatusUnauthorized, "untrusted_chain", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var record recorder
			var out bytes.Buffer
			log := slog.New(slog.NewTextHandler(&out, nil))
			peers := listener.FromXFCC(listener.ProxyAddresses(netip.MustParsePrefix("127.0.0.6/32")), ca.roots(),
				listener.PeerOptions{GatewayNames: named, ObserveOnly: log})
			l := newListener(t, peers, listener.ObserveOnly(listener.SANPinning(domains), log), &record,
				listener.Options{Hooks: record.hooks()})
			r := post("/v2/"+string(manager)+"/event", bodyV2)
			r.RemoteAddr = test.remote
			r.Header.Set(headerXFCC, test.header)
			w := serve(l, r)
			_, answers := record.taken()
			if len(answers) != 1 || w.Code != test.status || answers[0].Reason != test.reason {
				t.Errorf("status %d, answers %+v, want %d with the reason %q", w.Code, answers, test.status, test.reason)
			}
			if text := out.String(); !strings.Contains(text, test.logged) || (text == "") != (test.logged == "") {
				t.Errorf("log %q, want %q", text, test.logged)
			}
		})
	}
}
