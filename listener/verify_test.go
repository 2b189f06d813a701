package listener_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

func answering(err error) core.Verifier {
	return core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error { return err })
}

// AllOf returns the first error. AnyOf returns a refusal only if no verifier may let the event pass
// later.
func TestComposedVerifiers(t *testing.T) {
	t.Parallel()

	var (
		passes  = answering(nil)
		stays   = listener.Unauthenticated("first", errors.New("no"))
		forbids = listener.Forbidden("second", errors.New("no"))
		open    = errors.New("do not know")
		waits   = core.ErrNotReady
	)

	tests := []struct {
		name     string
		verifier core.Verifier
		want     error
	}{
		{"all of none", listener.AllOf(), core.ErrForbidden},
		{"all pass", listener.AllOf(passes, passes), nil},
		{"the first error counts", listener.AllOf(passes, answering(stays), answering(forbids)), stays},
		{"one is not ready", listener.AllOf(passes, answering(waits), answering(forbids)), waits},
		{"any of none", listener.AnyOf(), core.ErrForbidden},
		{"one passes", listener.AnyOf(answering(forbids), answering(open), passes), nil},
		{"the first refusal counts", listener.AnyOf(answering(stays), answering(forbids)), stays},
		{"one may still let it pass", listener.AnyOf(answering(forbids), answering(open), answering(waits)), open},
		{"one may let it pass later", listener.AnyOf(answering(forbids), answering(waits), answering(open)), waits},
		{"all of any", listener.AllOf(listener.AnyOf(answering(forbids), passes), listener.AnyOf(answering(stays))), stays},
		{"everything", listener.InsecureAllowAll(), nil},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if err := test.verifier.Verify(t.Context(), core.Peer{ID: "a"}, &core.WatchEvent{}); !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
		})
	}
}

// SAN pinning follows the contract of verifiers, alone and combined.
func TestVerifierSuite(t *testing.T) {
	t.Parallel()

	good := core.Peer{ID: "runtime-a", DNSNames: []string{"a.example"}}
	cases := []coretest.VerifierCase{
		{Name: "its own domain", Peer: good},
		{Name: "no SAN", Peer: core.Peer{ID: "runtime-a"}, Want: core.ErrForbidden},
		{Name: "the domain of another", Peer: core.Peer{ID: "runtime-b", DNSNames: []string{"a.example"}}, Want: core.ErrForbidden},
		{Name: "cold cache", Peer: core.Peer{ID: "cold"}, Want: core.ErrNotReady},
	}

	pinning := listener.SANPinning(listener.DomainsFunc(
		func(_ context.Context, runtime core.RuntimeID, _ *core.WatchEvent) (string, error) {
			if runtime == "cold" {
				return "", core.ErrNotReady
			}
			return strings.TrimPrefix(string(runtime), "runtime-") + ".example", nil
		}))

	for name, verifier := range map[string]core.Verifier{
		"alone": pinning, "AllOf": listener.AllOf(listener.InsecureAllowAll(), pinning),
		"AnyOf": listener.AnyOf(answering(listener.Forbidden("never", errors.New("never"))), pinning),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			coretest.TestVerifier(t, func(*testing.T) core.Verifier { return verifier }, cases...)
		})
	}
}

// Domains and SANs match as DNS names, URIs and addresses do, and a wildcard matches nothing.
func TestSANPinning(t *testing.T) {
	t.Parallel()

	peer := core.Peer{
		ID:       "runtime-a",
		DNSNames: []string{"A.example", "b.example.", "*.wild.example", "192.0.2.7", "kk.example", ""},
		URIs:     []string{"https://c.example/x", "d.example"},
		IPs:      []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
	}

	tests := []struct{ name, domain, reason string }{
		{"equal", "A.example", ""},
		{"other case", "a.EXAMPLE", ""},
		{"dot at the end of the domain", "a.example.", ""},
		{"dot at the end of the SAN", "b.example", ""},
		{"dots at both ends", "b.example.", ""},
		{"URI", "https://c.example/x", ""},
		{"IPv4", "192.0.2.1", ""},
		{"IPv4 in IPv6", "::ffff:192.0.2.1", ""},
		{"IPv6", "2001:db8::1", ""},
		{"IPv6, written out", "2001:0DB8:0:0:0:0:0:1", ""},
		{"another", "x.example", reasons.SANMismatch},
		{"a part", "example", reasons.SANMismatch},
		{"more", "x.a.example", reasons.SANMismatch},
		{"two dots at the end", "a.example..", reasons.SANMismatch},
		{"space around", " a.example", reasons.SANMismatch},
		{"of a wildcard SAN", "x.wild.example", reasons.SANMismatch},
		{"URI of other case", "https://C.example/x", reasons.SANMismatch},
		{"a URI without scheme", "d.example", reasons.SANMismatch},
		{"another IP address", "192.0.2.2", reasons.SANMismatch},
		{"an IP address among the DNS names", "192.0.2.7", reasons.SANMismatch},
		{"a letter that folds to ASCII", "\u212ak.example", reasons.SANMismatch},
		{"empty", "", reasons.DomainEmpty},
		{"blank", " \n", reasons.DomainEmpty},
		{"the root", ".", reasons.DomainEmpty},
		{"wildcard", "*", reasons.DomainWildcard},
		{"wildcard as in the SAN", "*.wild.example", reasons.DomainWildcard},
		{"wildcard inside", "a.*.example", reasons.DomainWildcard},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			domains := listener.DomainsFunc(func(_ context.Context, id core.RuntimeID, _ *core.WatchEvent) (string, error) {
				if id != peer.ID {
					t.Errorf("asked for runtime %q, want %q", id, peer.ID)
				}
				return test.domain, nil
			})

			err := listener.SANPinning(domains).Verify(t.Context(), peer, &core.WatchEvent{})
			if test.reason == "" {
				if err != nil {
					t.Errorf("error %v, want none", err)
				}
				return
			}

			if !errors.Is(err, core.ErrForbidden) || string(core.ReasonOf(err)) != test.reason {
				t.Errorf("error %v with reason %q, want %v with %q", err, core.ReasonOf(err), core.ErrForbidden, test.reason)
			}
		})
	}
}

// Events of one request with the same owner share a verdict. Others must not.
func TestVerdictsOfOneRequest(t *testing.T) {
	t.Parallel()

	var asked []string
	domains := listener.DomainsFunc(func(_ context.Context, _ core.RuntimeID, event *core.WatchEvent) (string, error) {
		asked = append(asked, event.Owner.Name)
		if event.Owner.Name == "foreign" {
			return "", listener.Forbidden(reasons.OwnerMissing, errors.New("not yours"))
		}
		return "a.example.com", nil
	})

	peers := listener.PeersFunc(func(*http.Request) (core.Peer, error) {
		return core.Peer{ID: runtimeA, DNSNames: []string{"a.example.com"}}, nil
	})

	verifiers := map[string]core.Verifier{
		"alone":    listener.SANPinning(domains),
		"in AllOf": listener.AllOf(listener.SANPinning(domains)),
		"in AnyOf": listener.AnyOf(listener.SANPinning(domains)),
	}

	for name, verifier := range verifiers {
		asked = nil
		l := newListener(t, peers, verifier, core.HandlerFunc(ignore), listener.Options{})
		body := encode(t, owned("", "", "own", "own", "foreign", "own", "own", "foreign", "foreign"))
		request := post(contract.V3.Path(manager), string(body))
		request.Header.Set("Content-Type", contract.V3.ContentType())
		answer := serve(l, request)
		refused := contract.Refusal{Status: http.StatusForbidden, Reason: reasons.OwnerMissing}
		want := contract.Answer{Failed: map[int]contract.Refusal{4: refused, 7: refused, 8: refused}}
		want.Status = http.StatusUnprocessableEntity
		want.Reason = reasons.Partial

		have := contract.DecodeAnswer(answer.Code, answer.Body.Bytes(), 9)
		if diff := cmp.Diff(want, have); diff != "" || answer.Header().Get("Retry-After") != "" {
			t.Errorf("%s: headers %v, answer (-want +have):\n%s", name, answer.Header(), diff)
		}
		if want := []string{"", "own", "foreign", "own", "foreign"}; !slices.Equal(asked, want) {
			t.Errorf("%s: the domains of the owners %q were asked for, want %q", name, asked, want)
		}
	}
}

// owned returns a batch with an event for each owner.
func owned(owners ...string) core.Batch {
	batch := changes(runtimeA, len(owners))
	for i, owner := range owners {
		if owner != "" {
			batch.Events[i].Owner = types.NamespacedName{Namespace: "kcp-system", Name: owner}
		}
	}

	return batch
}

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

	var reason string
	answered := func(a hook.Answer) { reason = string(a.Reason) }
	serve(newListener(t, listener.PeersFunc(known), dry, &recorder{}, listener.Options{Hooks: listener.Hooks{Answered: answered}}),
		post("/v2/"+string(manager)+"/event", bodyV2))
	if reason != "san_mismatch" {
		t.Errorf("the hook gets the reason %q, want san_mismatch", reason)
	}
}

// A listener that only observes takes what does not come from the gateway, too, and its hook gets
// the reason. The certificate must be one of the CA all the same.
func TestObserveOnlyOfTheGateway(t *testing.T) {
	ca := newAuthority(t, "ca")
	stranger := newAuthority(t, "stranger")
	domains := listener.DomainsFunc(func(context.Context, core.RuntimeID, *core.WatchEvent) (string, error) {
		return "right.example.com", nil
	})
	right := ca.client(t, "right", dnsNames("right.example.com")).header()
	wrong := ca.client(t, "wrong").header()
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
