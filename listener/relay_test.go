package listener_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// replicaName is the name of an operator, in the certificates of its replicas.
const replicaName = "my-operator.kcp-system.svc"

// replica is a listener that relays while it does not lead.
type replica struct {
	*running
	*electable

	watched *fleet.Fleet
	// relay is the address for other replicas.
	relay string
	// before runs before each event is taken, unless it is nil.
	before func(ctx context.Context, d core.Delivery) error
}

// Handle takes events on the leader only.
func (r *replica) Handle(ctx context.Context, d core.Delivery) error {
	if err := r.electable.Ready(); err != nil {
		return err
	}
	if r.before != nil {
		if err := r.before(ctx, d); err != nil {
			return err
		}
	}
	return r.electable.Handle(ctx, d)
}

// Ready is that of the handler.
func (r *replica) Ready() error { return r.electable.Ready() }

// replicas are those of one operator. All certificates are of one CA: a runtime then passes the
// handshake of the port for replicas.
type replicas struct {
	ca     *authority
	own    *leaf
	leader atomic.Pointer[string]
	wrong  *leaf // what a replica shows instead of own
	// protocols are those that Relay.Client offers.
	protocols []string
	options   listener.Options
	before    func(ctx context.Context, d core.Delivery) error
	// accepted counts the connections of replicas.
	accepted atomic.Int64
}

func newReplicas(tb testing.TB) *replicas {
	tb.Helper()
	ca := newAuthority(tb, "all")
	return &replicas{ca: ca, own: ca.client(tb, "my-operator", bothUsages, dnsNames(replicaName), onLoopback)}
}

// start starts a replica.
func (r *replicas) start(tb testing.TB, peers func(r *replicas) listener.Peers, leads bool) *replica {
	tb.Helper()
	bound := listen(tb)
	own := &replica{
		electable: &electable{leads: leads}, watched: newFleet(tb, fleet.Options{}), relay: bound.Addr().String(),
		before: r.before,
	}
	opts := r.options
	opts.Hooks, opts.Fleet = own.hooks(), own.watched
	opts.TLS = serverConfig(tb, r.ca, tls.RequireAnyClientCert, r.ca)
	opts.Relay = r.configure(bound)
	own.running = start(tb, peers(r), listener.SANPinning(listener.DomainsFunc(domainOf)), own, opts)
	if leads {
		r.leader.Store(&own.relay)
	}
	return own
}

func (r *replicas) configure(bound net.Listener) *listener.Relay {
	return &listener.Relay{
		Listener: &countedListener{bound, &r.accepted},
		Server: &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{r.own.pair()},
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: r.ca.pool(),
		},
		Client: func() (*tls.Config, error) {
			shown := r.own
			if r.wrong != nil {
				shown = r.wrong
			}
			config := r.client(shown)
			config.NextProtos = r.protocols
			return config, nil
		},
		Peers: listener.FromXFCC(listener.ProxyCertificate(r.ca.roots(), replicaName), r.ca.roots(), listener.PeerOptions{}),
		Leader: func() string {
			if address := r.leader.Load(); address != nil {
				return *address
			}
			return ""
		},
	}
}

type countedListener struct {
	net.Listener

	accepted *atomic.Int64
}

func (l *countedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.accepted.Add(1)
	}
	return c, err
}

func bothUsages(c *x509.Certificate) {
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
}

func onLoopback(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} }

func (r *replicas) client(shown *leaf) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: r.ca.pool(), ServerName: replicaName,
		Certificates: []tls.Certificate{shown.pair()},
	}
}

func native(r *replicas) listener.Peers {
	return listener.FromTLSWithRoots(r.ca.roots(), listener.PeerOptions{})
}

func gateway(r *replicas) listener.Peers {
	return listener.FromXFCC(listener.ProxyCertificate(r.ca.roots(), "gateway"), r.ca.roots(), listener.PeerOptions{})
}

// runtime returns a certificate of the runtime.
func (r *replicas) runtime(tb testing.TB, id core.RuntimeID) *leaf {
	tb.Helper()
	return r.ca.client(tb, string(id), dnsNames(strings.TrimPrefix(string(id), "runtime-")+".example"))
}

// post sends a body with a certificate, and returns the answer.
func (r *replicas) post(
	tb testing.TB, address string, shown *leaf, version contract.Version, body string, header http.Header,
) (*http.Response, string) {
	tb.Helper()
	request, err := http.NewRequestWithContext(
		tb.Context(), http.MethodPost, "https://"+address+version.Path(manager), strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	if header != nil {
		request.Header = header.Clone()
	}
	request.Header.Set("Content-Type", version.ContentType())
	transport := &http.Transport{TLSClientConfig: r.client(shown)}
	transport.TLSClientConfig.ServerName = ""
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return response, string(text)
}

// A replica that does not lead hands each request to the leader, which answers for itself.
func TestRelay(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	leader, standby := r.start(t, native, true), r.start(t, native, false)
	a := r.runtime(t, runtimeA)
	both := string(encode(t, join(change(runtimeA, 1), heartbeat(runtimeA, 1))))
	tests := []struct {
		name    string
		version contract.Version
		body    string
		want    int
		reason  string
	}{
		{"change and heartbeat", contract.V3, both, 202, ""},
		{"contract v2", contract.V2, bodyV2, 200, ""},
		{"refused by index", contract.V1, bodyV1, 403, listener.ReasonOwnerMissing},
		{"malformed", contract.V3, "{", 400, reasons.Malformed},
		{"too large", contract.V2, strings.Repeat(" ", 1<<20), 413, reasons.TooLarge},
		{"claim of another runtime", contract.V3, string(encode(t, change(runtimeB, 1))), 403, reasons.SourceMismatch},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			direct, directBody := r.post(t, leader.address(), a, test.version, test.body, nil)
			delivered, _ := leader.taken()
			relayed, relayedBody := r.post(t, standby.address(), a, test.version, test.body, nil)
			alsoDelivered, atLeader := leader.taken()
			here, answers := standby.taken()
			if relayed.StatusCode != test.want || direct.StatusCode != test.want || relayedBody != directBody {
				t.Errorf("relayed %d %q, direct %d %q, want %d from both",
					relayed.StatusCode, relayedBody, direct.StatusCode, directBody, test.want)
			}
			diff := cmp.Diff(ofChanges(delivered), ofChanges(alsoDelivered),
				cmpopts.IgnoreFields(core.Delivery{}, "Received"), cmpopts.EquateEmpty())
			if diff != "" || len(here) > 0 {
				t.Errorf("deliveries (-direct +relayed):\n%s%d at the replica that does not lead", diff, len(here))
			}
			if want := []answered{{string(test.version), manager, test.want, test.reason}}; !cmp.Equal(want, answers) {
				t.Errorf("counted %v, want %v (leader: %v)", answers, want, atLeader)
			}
		})
	}
	if s := leader.watched.Get(runtimeA, manager); s.State != fleet.Fresh {
		t.Errorf("the leader finds the runtime %s, want fresh", s.State)
	}
	if s := standby.watched.Get(runtimeA, manager); !s.LastSeen.IsZero() {
		t.Errorf("a replica that does not lead has observed %+v", s)
	}
}

// ofChanges returns the deliveries of changes. The fleet asks for resyncs at any time after a heartbeat.
func ofChanges(all []core.Delivery) []core.Delivery {
	return slices.DeleteFunc(all, func(d core.Delivery) bool { return d.Event.Resync })
}

// The share of a runtime is one, on whatever replicas its requests arrive.
func TestRelayedRequestsShareOneLimit(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	r.options.RuntimeRate, r.options.RuntimeBurst = 0.001, 4
	leader, standby := r.start(t, native, true), r.start(t, native, false)
	a := r.runtime(t, runtimeA)
	var statuses []int
	for _, to := range []*replica{leader, standby, leader, standby, r.start(t, native, false)} {
		response, _ := r.post(t, to.address(), a, contract.V3, string(encode(t, change(runtimeA, 1))), nil)
		statuses = append(statuses, response.StatusCode)
	}
	if want := []int{202, 202, 202, 429, 429}; !cmp.Equal(want, statuses) {
		t.Errorf("answers %v, want %v", statuses, want)
	}
}

// Without a leader that answers, the replica answers as one that does not relay.
func TestRelayWithoutLeader(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	standby := r.start(t, native, false)
	a := r.runtime(t, runtimeA)
	closed := listen(t)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	stranger := r.start(t, native, true)
	tests := []struct {
		name, leader string
		wrong        *leaf
	}{
		{"unknown", "", nil},
		{"dead", closed.Addr().String(), nil},
		{"itself, which does not lead", standby.relay, nil},
		{"one that does not accept the replica", stranger.relay, r.ca.client(t, "my-operator", dnsNames("other.svc"))},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r.leader.Store(&test.leader)
			r.wrong = test.wrong
			response, body := r.post(t, standby.address(), a, contract.V2, bodyV2, nil)
			if response.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, reasons.NotReady) {
				t.Errorf("answer %d %s, want 503 not_ready", response.StatusCode, body)
			}
		})
	}
}

// An election costs runtimes no handshakes. A replica that never reaches the leader loses them.
func TestRelayKeepsConnectionsInAnElection(t *testing.T) {
	t.Parallel()
	var now atomic.Int64
	r := newReplicas(t)
	began := time.Now()
	r.options.Now = func() time.Time { return began.Add(time.Duration(now.Load())) }
	standby := r.start(t, native, false)
	a := r.runtime(t, runtimeA)
	closes := func() bool {
		response, _ := r.post(t, standby.address(), a, contract.V2, bodyV2, nil)
		return response.Close
	}
	for _, step := range []struct {
		after time.Duration
		want  bool
	}{{0, false}, {20 * time.Second, false}, {11 * time.Second, true}} {
		now.Add(int64(step.after))
		if closes() != step.want {
			t.Errorf("%v after the last answer of a leader: closes %v, want %v", time.Duration(now.Load()), !step.want, step.want)
		}
	}
	leader := r.start(t, native, true)
	if closes() {
		t.Error("a relayed request closes the connection")
	}
	leader.stop()
	if err := leader.stopped(); err != nil {
		t.Error(err)
	}
	if closes() {
		t.Error("the first failure after a success closes the connection")
	}
}

// Two replicas that take each other for the leader end after one relay.
func TestRelayDoesNotLoop(t *testing.T) {
	t.Parallel()
	r, back := newReplicas(t), newReplicas(t)
	back.ca, back.own = r.ca, r.own
	one, two := r.start(t, native, false), back.start(t, native, false)
	r.leader.Store(&two.relay)
	back.leader.Store(&one.relay)
	response, body := r.post(t, one.address(), r.runtime(t, runtimeA), contract.V2, bodyV2, nil)
	if response.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, reasons.NotReady) {
		t.Errorf("answer %d %s, want 503 not_ready", response.StatusCode, body)
	}
	_, first := one.taken()
	_, second := two.taken()
	if want := []answered{{"v2", manager, 503, reasons.NotReady}}; !cmp.Equal(want, first) || !cmp.Equal(want, second) {
		t.Errorf("counted %v and %v, want %v at both", first, second, want)
	}
}

// Only replicas can relay, and only for a runtime with a certificate that the leader trusts.
func TestAttacksOnRelay(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	leader, standby := r.start(t, native, true), r.start(t, native, false)
	behind := r.start(t, gateway, false)
	other := newAuthority(t, "all")
	a, b := r.runtime(t, runtimeA), r.runtime(t, runtimeB)
	named := func(ca *authority, edits ...func(*x509.Certificate)) *leaf {
		return ca.client(t, "my-operator", append(edits, dnsNames(replicaName))...)
	}
	forRuntimes := func(certs ...*leaf) http.Header {
		header := http.Header{}
		for _, cert := range certs {
			header.Add(listener.HeaderXFCC, cert.header())
		}
		return header
	}
	tests := []struct {
		name   string
		to     string
		shown  *leaf
		header http.Header
		want   core.RuntimeID // the runtime that is triggered; "" means none
	}{
		{"a replica, for a runtime", leader.relay, r.own, forRuntimes(b), "runtime-b"},
		{"a runtime, for itself", leader.relay, a, nil, ""},
		{"a runtime, for itself in a header", leader.relay, a, forRuntimes(a), ""},
		{"a runtime, for another", leader.relay, a, forRuntimes(b), ""},
		{"a gateway, for a runtime", leader.relay, r.ca.client(t, "gateway", dnsNames("gateway")), forRuntimes(b), ""},
		{"the name of another operator", leader.relay, r.ca.client(t, "other", dnsNames("other-"+replicaName)), forRuntimes(b), ""},
		{"the name as Common Name only", leader.relay, r.ca.client(t, replicaName), forRuntimes(b), ""},
		{"the name, of another CA", leader.relay, named(other), forRuntimes(b), ""},
		{"the name, expired", leader.relay, named(r.ca, expired), forRuntimes(b), ""},
		{"the name, for servers only", leader.relay, named(r.ca, serverOnly), forRuntimes(b), ""},
		{"a replica, without header", leader.relay, r.own, nil, ""},
		{"a replica, for itself", leader.relay, r.own, forRuntimes(r.own), ""},
		{"a replica, for two runtimes", leader.relay, r.own, forRuntimes(a, b), ""},
		{"a replica, for a runtime of another CA", leader.relay, r.own, forRuntimes(other.client(t, "runtime-b", dnsNames("b.example"))), ""},
		{"a replica, for an expired runtime", leader.relay, r.own, forRuntimes(r.ca.client(t, "runtime-b", dnsNames("b.example"), expired)), ""},
		{"a replica, for a runtime with a wrong domain", leader.relay, r.own, forRuntimes(r.ca.client(t, "runtime-b", dnsNames("a.example"))), ""},
		{"a runtime with a header, to the leader", leader.address(), a, forRuntimes(b), "runtime-a"},
		{"a runtime with a header, relayed", standby.address(), a, forRuntimes(b), "runtime-a"},
		{"a replica with a header, to the port of runtimes", leader.address(), r.own, forRuntimes(b), ""},
		{"a replica with a header, relayed", standby.address(), r.own, forRuntimes(b), ""},
		{"a replica as a gateway", behind.address(), r.own, forRuntimes(b), ""},
		{"a runtime as a gateway", behind.address(), a, forRuntimes(b), ""},
		{"a gateway, relayed", behind.address(), r.ca.client(t, "gateway", dnsNames("gateway")), forRuntimes(b), "runtime-b"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			response, text := r.post(t, test.to, test.shown, contract.V2, bodyV2, test.header)
			status := 0
			if response != nil {
				status = response.StatusCode
			}
			var triggered core.RuntimeID
			delivered, _ := leader.taken()
			for _, d := range delivered {
				triggered = d.Runtime
			}
			if triggered != test.want || (status == http.StatusOK) != (test.want != "") {
				t.Errorf("triggered %q with answer %d %s, want %q", triggered, status, text, test.want)
			}
		})
	}
}

func TestRelayOptions(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	whole := func() *listener.Relay { return r.configure(nil) }
	tests := []struct {
		name  string
		peers listener.Peers
		relay *listener.Relay
		want  string
	}{
		{"without anything", native(r), &listener.Relay{}, "needs Server, Client, Peers and Leader"},
		{"peers of its own", listener.PeersFunc(known), whole(), "peers of a relay"},
		{"relayed requests from TLS", native(r), func() *listener.Relay {
			relay := whole()
			relay.Peers = native(r)
			return relay
		}(), "want FromXFCC"},
		{"no proxy", native(r), func() *listener.Relay {
			relay := whole()
			relay.Peers = listener.FromXFCC(nil, r.ca.roots(), listener.PeerOptions{})
			return relay
		}(), "proxy is nil"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := listener.New(test.peers, listener.InsecureAllowAll(), handlers(&electable{}), listener.Options{Relay: test.relay})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("New returns %v, want an error with %q", err, test.want)
			}
		})
	}
}

// A gateway sends the next request to another replica, so that a runtime may send it at once.
func TestNotLeadingBehindAGateway(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	peers := listener.FromXFCC(listener.InsecureAnyProxy(), r.ca.roots(), listener.PeerOptions{})
	follower := &replica{electable: &electable{}}
	l := newListener(t, peers, listener.InsecureAllowAll(), follower, listener.Options{})
	request := post(contract.V2.Path(manager), bodyV2)
	request.Header.Set(listener.HeaderXFCC, r.runtime(t, runtimeA).header())
	answer := serve(l, request).Result()
	wait, closes := answer.Header.Get("Retry-After"), answer.Header.Get("Connection")
	if answer.StatusCode != http.StatusServiceUnavailable || wait != "" || closes != "close" {
		t.Errorf("answer %d, Retry-After %q, Connection %q, want 503 with close and without a wait", answer.StatusCode, wait, closes)
	}
}
