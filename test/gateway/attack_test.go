package gateway_test

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

const (
	// self is the runtime that an attacker owns, victim the one that he is after.
	self, victim = "runtime-a", "runtime-b"

	selfDomain, victimDomain = "a.example.com", "b.example.com"
)

// outcome is how a request ends: "401 expired" is the listener's answer with the reason that it counted.
type outcome string

const (
	failedHandshake outcome = "no handshake"
	nginxRefused    outcome = "400 by nginx"
	nginxClosed     outcome = "closed by nginx"
	// passed means that the event was taken, and that it triggered the runtime which sent it, and nobody else.
	passed         outcome = "as itself"
	untrustedProxy outcome = "401 untrusted_proxy"
)

func unauthenticated(reason string) outcome { return outcome("401 " + reason) }
func forbidden(reason string) outcome       { return outcome("403 " + reason) }

// row is one attack.
type row struct {
	name string
	// leaf is what the attacker shows, header and trailer what he sends along.
	leaf            *tls.Certificate
	header, trailer http.Header
	// versions are the contracts that it is tried with. Default: all.
	versions []contract.Version
	// event is what he claims. Default: to be the victim.
	event func(contract.Version) core.WatchEvent
	// http1 means that it can not be said in HTTP/2, closed that nginx ends the connection when it is.
	http1, closed bool
	// prepare changes what is registered, before the attack.
	prepare func(t *testing.T)
	// triggers is the object that stands for the owner of leaf. Default: that of self.
	triggers string
	// want is how it ends; "" where the row does not apply.
	want func(way, contract.Version) outcome
}

// asVictim claims to be the victim.
func asVictim(v contract.Version) core.WatchEvent { return eventOf(v, victim) }

// eventOf is an event that says, where its contract can, that it comes from a runtime.
func eventOf(v contract.Version, runtime string) core.WatchEvent {
	event := core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: "default", Name: "object"},
		WatchedGVK: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
	}

	switch v {
	case contract.V1:
		event.Owner = owner(runtime)
	case contract.V3:
		event.ID, event.Source = "1", core.RuntimeID(runtime)
	default:
	}

	return event
}

func owner(runtime string) types.NamespacedName {
	return types.NamespacedName{Namespace: rig.Namespace, Name: runtime}
}

// TestAttacks has every attack against every way to a listener. Before and after each, the legitimate runtime passes there: what is
// refused is refused for what it is.
//
// A request that nginx refuses never reaches the listener; the lax nginx shows that the listener does not rely on it.
func TestAttacks(t *testing.T) {
	n := newNetwork(t)
	n.at.register(t, rig.Namespace, self, new(selfDomain))
	n.at.register(t, rig.Namespace, victim, new(victimDomain))

	a := &attacks{network: n, clients: map[regular]*http.Client{}, table: &table{}}
	a.self, a.victim = a.runtime(self, selfDomain), a.runtime(victim, victimDomain)

	for _, group := range []struct {
		name string
		rows []row
	}{
		{"certificates", a.certificates()},
		{"claims", a.claims(t)},
		{"headers", a.headers()},
		{"impersonation of the gateway", a.impersonations()},
	} {
		a.table.section(group.name)

		for _, r := range group.rows {
			t.Run(group.name+"/"+r.name, func(t *testing.T) { a.run(t, r) })
		}
	}

	// All the time, one event of his own would have triggered the victim.
	if slices.Contains(a.at.queue.since(0), owner(victim).String()) {
		t.Error("the victim was triggered")
	}

	for w := range ways {
		if w.legitimate() {
			a.passes(t, w, a.victim, victim)
		}
	}

	a.closeIdle()
	t.Logf("\n%s", a.table)
}

// attacks is the table, and what its rows need.
type attacks struct {
	*network

	self, victim *tls.Certificate
	clients      map[regular]*http.Client
	table        *table
	passed       int // legitimate events so far
}

// regular is a runtime that keeps its connections.
type regular struct {
	way   way
	leaf  *tls.Certificate
	http2 bool
}

// run tries an attack in every way, with every contract and version of HTTP that it is for.
func (a *attacks) run(t *testing.T, r row) {
	t.Helper()

	if r.prepare != nil {
		r.prepare(t)
	}

	if r.versions == nil {
		r.versions = contract.Versions()
	}

	if r.event == nil {
		r.event = asVictim
	}

	if r.triggers == "" {
		r.triggers = self
	}

	have := map[way][]outcome{}

	for w := range ways {
		if r.want(w, r.versions[0]) == "" {
			continue
		}

		if w.legitimate() {
			a.passes(t, w, a.self, self)
		}

		for _, version := range r.versions {
			for _, http2 := range []bool{false, true} {
				if http2 && r.http1 {
					continue
				}

				got := a.try(t, w, r, version, http2)
				if !slices.Contains(have[w], got) {
					have[w] = append(have[w], got)
				}

				want := r.want(w, version)
				if http2 && r.closed && w.nginx() {
					want = nginxClosed
				}

				if got != want {
					t.Errorf("%s, %s, HTTP/2 %t: %s, want %s", w, version, http2, got, want)
				}
			}
		}

		if w.legitimate() {
			a.passes(t, w, a.self, self)
		}
	}

	a.table.add(r.name, have)
}

// passes sends a legitimate event, with one contract after the other.
func (a *attacks) passes(t *testing.T, w way, leaf *tls.Certificate, name string) {
	t.Helper()

	a.passed++
	version := contract.Versions()[a.passed%len(contract.Versions())]

	key := regular{w, leaf, a.passed%2 == 0}
	if a.clients[key] == nil {
		a.clients[key], _ = a.client(w, leaf, key.http2)
	}

	m := a.message(w, row{leaf: leaf, header: xfcc(headerOf(leaf))}, version, key.http2)
	m.body = must(version.Encode([]core.WatchEvent{eventOf(version, name)}))

	before := a.at.queue.len()

	got := a.sendBy(t, a.clients[key], w, m)
	if got.err != nil || got.status != version.Status() {
		t.Errorf("%s, %s: the legitimate %s gets %d (%v), want %d", w, version, name, got.status, got.err, version.Status())
	}

	if added := a.at.queue.since(before); !slices.Equal(added, []string{owner(name).String()}) {
		t.Errorf("%s, %s: the legitimate %s triggers %q, want itself", w, version, name, added)
	}
}

func (a *attacks) closeIdle() {
	for _, c := range a.clients {
		c.CloseIdleConnections()
	}
}

// try makes one attempt, and returns how it ended: by the answer, by what the listener counted, and by the workqueue.
func (a *attacks) try(t *testing.T, w way, r row, version contract.Version, http2 bool) outcome {
	t.Helper()

	m := a.message(w, r, version, http2)
	m.body = must(version.Encode([]core.WatchEvent{r.event(version)}))
	queued, counted := a.at.queue.len(), a.counts(w).answers()
	got := a.send(t, w, m)
	ended := a.ended(t, w, got, version, counted)
	added := a.at.queue.since(queued)

	switch {
	case ended == passed && !slices.Equal(added, []string{owner(r.triggers).String()}):
		t.Errorf("%s, %s: it triggers %q, want %q", w, version, added, owner(r.triggers))
	case ended != passed && len(added) > 0:
		t.Errorf("%s, %s: it was refused (%s) and triggers %q", w, version, ended, added)
	case got.err == nil && !got.page && (got.proto == 2) != http2:
		t.Errorf("%s: HTTP/%d", w, got.proto)
	}

	return ended
}

// ended compares the answer with what was counted at the listener, which counts after it has answered.
func (a *attacks) ended(t *testing.T, w way, got answer, version contract.Version, before map[string]float64) outcome {
	t.Helper()

	var counted string

	switch {
	case got.err != nil && w == handshake:
		counted = string(failedHandshake)
	case w.nginx() && (got.page || got.err != nil && strings.Contains(got.err.Error(), "GOAWAY")):
		if more := a.counts(w).more(before); more != "" {
			t.Errorf("%s: nginx refused, and the listener counted %s", w, more)
		}

		if got.err != nil {
			return nginxClosed
		}

		return outcome(fmt.Sprintf("%d by nginx", got.status))
	case got.err != nil:
		return outcome(fmt.Sprintf("failed: %v", got.err))
	default:
		counted = strconv.Itoa(got.status)
	}

	var more string

	eventually(t, "the listener has counted "+counted, func() bool {
		more = a.counts(w).more(before)

		return more != ""
	})

	ended, times, _ := strings.Cut(more, " ×")
	if times != "1" || !strings.HasPrefix(ended, counted) {
		t.Errorf("%s: answered %q and counted %q, want the same, once", w, counted, more)
	}

	if ended == strconv.Itoa(version.Status()) {
		return passed
	}

	return outcome(ended)
}

// message is what an attacker sends: his own header where the row has one, and else the best that he can have.
func (a *attacks) message(w way, r row, version contract.Version, http2 bool) message {
	m := message{
		leaf: r.leaf, header: maps.Clone(r.header), trailer: r.trailer, version: version, path: version.Path(component), http2: http2,
	}

	switch {
	case m.header != nil:
	case w == written:
		m.header = xfcc(headerOf(r.leaf))
	default:
		m.header = xfcc(headerOf(a.victim))
	}

	return m
}

// The wants of whole groups.

// refused is for a certificate that nobody may trust.
func refused(reason string) func(way, contract.Version) outcome {
	return func(w way, _ contract.Version) outcome {
		switch w {
		case handshake:
			return failedHandshake
		case byCertificate, byAddress:
			return nginxRefused
		case pastCertificate, pastAddress:
			return untrustedProxy
		default:
			return unauthenticated(reason)
		}
	}
}

// everywhere is for a certificate that verifies: what the listener makes of it does not depend on the way.
func everywhere(want outcome) func(way, contract.Version) outcome {
	return byVersion(map[contract.Version]outcome{contract.V1: want, contract.V2: want, contract.V3: want})
}

func byVersion(want map[contract.Version]outcome) func(way, contract.Version) outcome {
	return func(w way, v contract.Version) outcome {
		if w == pastCertificate || w == pastAddress {
			return untrustedProxy
		}

		return want[v]
	}
}

// asSelf is for what is sent along with the good certificate of self: it is not looked at, unless the gateway itself wrote it.
func asSelf(reason string) func(way, contract.Version) outcome {
	return func(w way, v contract.Version) outcome {
		if w == written {
			return unauthenticated(reason)
		}

		return ignored(w, v)
	}
}

// ignored is for an event of self that claims to be the victim: contract v2 has no claim.
func ignored(w way, v contract.Version) outcome {
	return byVersion(map[contract.Version]outcome{
		contract.V1: forbidden(reasonOwnerMismatch), contract.V2: passed, contract.V3: forbidden(listener.ReasonSourceMismatch),
	})(w, v)
}

// table is what is printed.
type table struct{ text strings.Builder }

func (t *table) section(name string) {
	fmt.Fprintf(&t.text, "\n%s", strings.ToUpper(name))

	for w := range ways {
		fmt.Fprintf(&t.text, "\t%s", w)
	}

	t.text.WriteString("\n")
}

func (t *table) add(name string, have map[way][]outcome) {
	t.text.WriteString(name)

	for w := range ways {
		cell := "–"
		if len(have[w]) > 0 {
			cell = strings.Join(texts(have[w]), " / ")
		}

		fmt.Fprintf(&t.text, "\t%s", cell)
	}

	t.text.WriteString("\n")
}

func texts(outcomes []outcome) (texts []string) {
	for _, o := range outcomes {
		texts = append(texts, string(o))
	}

	return texts
}

func (t *table) String() string {
	var out strings.Builder

	columns := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	_, _ = columns.Write([]byte(t.text.String())) // To memory.
	_ = columns.Flush()                           // To memory.

	return out.String()
}

// issue makes a certificate by hand: of any template, signed by any key.
func issue(template, parent *x509.Certificate, parentKey any) *tls.Certificate {
	key := newKey()
	der := must(x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey))

	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: must(x509.ParseCertificate(der))}
}
