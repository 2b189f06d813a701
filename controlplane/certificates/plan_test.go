package certificates

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// A seed that fails must fail each time. Without one, package rapid draws another one for each run.
func TestMain(m *testing.M) {
	if os.Getenv("RAPID_SEED") == "" {
		_ = flag.Set("rapid.seed", "1") // The flag is there.
	}
	os.Exit(m.Run())
}

const propagation = 5 * time.Minute

const caLife = 365 * day

// loaded is the state of a process: a bundle, and the CA of its own certificate.
type loaded struct {
	bundle []string
	signer string
}

// member is a runtime: what is issued for it in the control plane, and what its agents have loaded.
type member struct {
	issued  leaf
	loaded  loaded
	frozen  bool // gets no new Secret
	beating bool // its heartbeats report its bundle
	created time.Time
}

// world simulates everything around plan: cert-manager, listeners, runtimes and time.
type world struct {
	now         time.Time
	authorities []authority
	signers     [2]int // of clients and server
	server      leaf
	secret      published
	material    loaded // content of secret
	listeners   [2]struct {
		loaded

		behind time.Time // since when it has not loaded what is published
	}
	members  []*member
	request  string
	anyway   int // the annotation with the generation to switch to, which nobody removes
	expiries map[string]time.Time
	cutOff   map[core.RuntimeID]bool // by a switch that did not wait, until they load
	serials  int
}

func newWorld() *world {
	return &world{now: time.Unix(1e9, 0), expiries: map[string]time.Time{}, cutOff: map[core.RuntimeID]bool{}}
}

func (w *world) view() view {
	v := view{
		now: w.now, authorities: slices.Clone(w.authorities), clientSigner: w.signers[0], serverSigner: w.signers[1],
		server: w.server, published: w.secret, request: w.request, switchAnyway: w.anyway, propagation: propagation,
	}

	v.published.current = w.secret.present && w.material.signer == w.publishable() &&
		slices.Equal(w.bundle(), w.material.bundle)

	for _, f := range w.material.bundle {
		v.published.newest = max(v.published.newest, generationIn(f))
	}

	for i := range v.authorities {
		v.authorities[i].replaced, v.authorities[i].key = w.replaced(v.authorities[i]), v.authorities[i].fingerprint
	}

	newest := v.newest().fingerprint
	for _, m := range w.members {
		v.runtimes = append(v.runtimes, m.issued)
		asked := !m.created.After(w.secret.since.Add(propagation))
		if asked && (!m.beating || !slices.Contains(m.loaded.bundle, newest)) {
			v.unconfirmed = append(v.unconfirmed, m.issued.runtime)
		}
	}

	return v
}

// generationIn returns the number of a CA, which its fingerprint begins with.
func generationIn(fingerprint string) (generation int) {
	_, _ = fmt.Sscanf(fingerprint, "ca-%d-", &generation) // Otherwise it is 0.
	return generation
}

// replaced reports whether the bundle has another CA of the same generation.
func (w *world) replaced(a authority) bool {
	return a.fingerprint != "" && slices.ContainsFunc(w.material.bundle, func(f string) bool {
		return generationIn(f) == a.generation && f != a.fingerprint
	})
}

// publishable is the CA of the server certificate that may be published.
func (w *world) publishable() string {
	if slices.Contains(w.material.bundle, w.server.signer) || w.signs(w.server.signer) {
		return w.server.signer
	}
	return w.material.signer
}

func (w *world) signs(fingerprint string) bool {
	return slices.ContainsFunc(w.authorities, func(a authority) bool { return a.fingerprint == fingerprint })
}

// loseKey deletes the Secret of a CA, and cert-manager makes another CA in its place.
func (w *world) loseKey(pick int) {
	if len(w.authorities) == 0 {
		return
	}

	a := &w.authorities[pick%len(w.authorities)]
	if !w.secret.present || !slices.Contains(w.material.bundle, a.fingerprint) {
		return
	}

	w.serials++
	a.fingerprint, a.notAfter = fmt.Sprintf("ca-%d-%d", a.generation, w.serials), w.now.Add(caLife)
	w.expiries[a.fingerprint] = a.notAfter
}

// step does what plan says, once, as Certificates would. It may be called at any time: nothing is
// remembered in between.
func (w *world) step() step {
	v := w.view()
	s := plan(v)
	switch s.action {
	case actionDiscard, actionRetire:
		w.authorities = slices.DeleteFunc(w.authorities, func(a authority) bool { return slices.Contains(s.remove, a.generation) })
	case actionCreate:
		if !v.hasGeneration(s.generation) {
			w.authorities = append(w.authorities, authority{generation: s.generation, request: v.request})
		}

	case actionSignClients:
		w.signers[0] = s.generation
	case actionSignServer:
		w.signers[1] = s.generation
		w.server.name = "server"
		w.cut(v)

	case actionPublish:
		w.publish()
	case actionReissue:
		for _, l := range s.reissue {
			i := slices.IndexFunc(w.members, func(m *member) bool { return m.issued.runtime == l.runtime })
			w.members[i].issued.issuing = true
		}

	case actionReissueServer:
		w.server.issuing = true
		w.cut(v)

	case actionNone:
	}

	return s
}

// cut notes the runtimes that a switch did not wait for, as far as it did not have to.
func (w *world) cut(v view) {
	if !w.mayCut() {
		return
	}

	for _, id := range v.unconfirmed {
		w.cutOff[id] = true
	}
}

// mayCut is the rule for a switch that does not wait, from the documents and not from the plan: a
// user asks for a switch to exactly the CA that is the youngest now, or the CA of the server
// certificate has 14 days left. If the key of that CA is lost, the end of the certificate counts.
func (w *world) mayCut() bool {
	youngest := 0
	ends := w.server.notAfter
	for _, a := range w.authorities {
		if a.fingerprint == "" {
			continue
		}

		youngest = max(youngest, a.generation)
		if a.fingerprint == w.server.signer {
			ends = a.notAfter
		}
	}

	return w.anyway == youngest || !w.now.Before(ends.Add(-14*24*time.Hour))
}

// bundle is the one to publish.
func (w *world) bundle() []string {
	bundle := slices.Clone(w.material.bundle)
	for _, a := range w.authorities {
		if a.fingerprint != "" && !slices.Contains(bundle, a.fingerprint) {
			bundle = append(bundle, a.fingerprint)
		}
	}

	return slices.DeleteFunc(bundle, func(f string) bool { return w.now.After(w.expiries[f]) })
}

func (w *world) publish() {
	bundle := w.bundle()
	if slices.ContainsFunc(bundle, func(f string) bool { return !slices.Contains(w.material.bundle, f) }) {
		w.secret.since = w.now
	}

	w.material = loaded{bundle, w.publishable()}
	w.secret.present = true
	for i := range w.listeners {
		if w.listeners[i].behind.IsZero() {
			w.listeners[i].behind = w.now
		}
	}
}

// issue is cert-manager.
func (w *world) issue(pick int) {
	for i := range w.authorities {
		if a := &w.authorities[i]; a.fingerprint == "" {
			w.serials++
			a.fingerprint, a.notAfter = fmt.Sprintf("ca-%d-%d", a.generation, w.serials), w.now.Add(caLife)
			w.expiries[a.fingerprint] = a.notAfter

			return
		}
	}

	leaves := []*leaf{&w.server}
	for _, m := range w.members {
		leaves = append(leaves, &m.issued)
	}

	l := leaves[pick%len(leaves)]
	signer := w.signers[0]
	if l == &w.server {
		signer = w.signers[1]
	}

	// One that is issued already is renewed, as cert-manager does when it likes.
	for _, a := range w.authorities {
		if a.generation == signer && a.fingerprint != "" {
			l.signer = a.fingerprint
			l.present = true
			l.issuing = false
			l.notAfter = w.now.Add(Options{}.withDefaults().Duration)
		}
	}
}

// load is the kubelet, or the operator that installs the agent, and the agent that reads the files.
func (w *world) load(m *member) {
	if !m.issued.present || !w.secret.present || m.frozen || !slices.Contains(w.material.bundle, m.issued.signer) {
		return
	}

	m.loaded = loaded{slices.Clone(w.material.bundle), m.issued.signer}
	delete(w.cutOff, m.issued.runtime)
}

func (w *world) reload(i int) {
	w.listeners[i].loaded = loaded{slices.Clone(w.material.bundle), w.material.signer}
	w.listeners[i].behind = time.Time{}
}

// pass lets time pass. No listener stays behind for longer than the propagation takes.
func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	for i, l := range w.listeners {
		if !l.behind.IsZero() && w.now.Sub(l.behind) >= propagation {
			w.reload(i)
		}
	}
}

func (w *world) trusts(bundle []string, signer string) bool {
	return slices.Contains(bundle, signer) && !w.now.After(w.expiries[signer])
}

// check is the invariant: both ends of each connection can verify each other.
func (w *world) check(t *rapid.T) {
	if len(w.authorities) > maxAuthorities {
		t.Fatalf("%d CAs at once", len(w.authorities))
	}

	for i, l := range w.listeners {
		for _, m := range w.members {
			if l.signer == "" || m.loaded.signer == "" || w.now.After(w.expiries[m.loaded.signer]) ||
				w.now.After(w.expiries[l.signer]) {
				continue // A missing renewal is no fault of the order.
			}

			if !w.trusts(l.bundle, m.loaded.signer) {
				t.Fatalf("listener %d trusts %v, and not runtime %s with its certificate of %s", i, l.bundle, m.issued.runtime,
					m.loaded.signer)
			}

			if !w.trusts(m.loaded.bundle, l.signer) && !w.cutOff[m.issued.runtime] {
				t.Fatalf("runtime %s trusts %v, and not listener %d with its certificate of %s", m.issued.runtime,
					m.loaded.bundle, i, l.signer)
			}
		}
	}
}

func (w *world) add() {
	id := core.RuntimeID("r" + strconv.Itoa(len(w.members)))
	w.members = append(w.members, &member{issued: leaf{runtime: id, name: string(id)}, created: w.now, beating: true})
}

// orphaned reports whether a process needs a CA with a lost key.
func (w *world) orphaned() bool {
	orphan := func(f string) bool { return f != "" && !w.signs(f) }
	for i := range w.listeners {
		if orphan(w.listeners[i].signer) {
			return true
		}
	}

	return orphan(w.material.signer) ||
		slices.ContainsFunc(w.members, func(m *member) bool { return orphan(m.loaded.signer) })
}

// done reports whether the youngest CA signs everything, and every listener and runtime has loaded
// it.
func (w *world) done() bool {
	return len(w.authorities) == 1 && !slices.ContainsFunc(w.members, func(m *member) bool {
		return m.loaded.signer != w.view().newest().fingerprint
	})
}

// settle lets all parts act until nothing changes.
func (w *world) settle(t *rapid.T) {
	for round := range 300 {
		s := w.step()
		w.check(t)
		if s.phase == PhaseStable && s.action == actionNone && w.done() {
			return
		}

		for i := range len(w.members) + 4 {
			w.issue(i)
			w.check(t)
		}

		for _, m := range w.members {
			// Runtimes take their time.
			if round%20 == 19 {
				w.load(m)
				w.check(t)
			}
		}

		w.pass(time.Minute)
		w.check(t)
	}
	t.Fatalf("not stable: %+v", plan(w.view()))
}

// In any order of events, two peers can always verify each other, and each rotation ends. The plan
// has no memory, so a crash between two steps is part of this.
func TestOrderOfRotation(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		for range rapid.IntRange(0, 4).Draw(t, "runtimes") {
			w.add()
		}

		w.settle(t)
		pick := rapid.IntRange(0, 1000)
		anyone := func() *member {
			if len(w.members) == 0 {
				w.add()
			}
			return w.members[pick.Draw(t, "runtime")%len(w.members)]
		}

		t.Repeat(map[string]func(*rapid.T){
			"step":   func(*rapid.T) { w.step() },
			"issue":  func(t *rapid.T) { w.issue(pick.Draw(t, "certificate")) },
			"load":   func(*rapid.T) { w.load(anyone()) },
			"freeze": func(*rapid.T) { anyone().frozen = true },
			"thaw":   func(*rapid.T) { anyone().frozen = false },
			"silent": func(*rapid.T) { anyone().beating = false },
			"beat":   func(*rapid.T) { anyone().beating = true },
			"listen": func(t *rapid.T) { w.reload(pick.Draw(t, "listener") % len(w.listeners)) },
			"year": func(t *rapid.T) {
				// A runtime that is down for months during a rotation loses its connection.
				asleep := slices.ContainsFunc(w.members, func(m *member) bool { return m.frozen || !m.beating })
				if w.done() && !asleep && pick.Draw(t, "months")%5 == 0 {
					w.settle(t)
					w.pass(caLife - rotateBefore)
					w.settle(t)
				}
			},
			"pass":    func(t *rapid.T) { w.pass(time.Duration(pick.Draw(t, "seconds")) * time.Second) },
			"request": func(t *rapid.T) { w.request = strconv.Itoa(pick.Draw(t, "request")) },
			"anyway":  func(t *rapid.T) { w.anyway = 1 + pick.Draw(t, "generation")%5 },
			"add":     func(*rapid.T) { w.add() },
			"lost": func(t *rapid.T) {
				// The listener's Secret is deleted, and with it the retired CAs in the bundle.
				if len(w.cutOff) == 0 && !w.orphaned() && pick.Draw(t, "really")%10 == 0 {
					w.secret = published{}
					w.material = loaded{}
				}
			},
			"key": func(t *rapid.T) {
				if len(w.cutOff) == 0 {
					w.loseKey(pick.Draw(t, "authority"))
				}
			},
			"": w.check,
		})
		for _, m := range w.members {
			m.frozen = false
			m.beating = true
		}

		w.settle(t)
	})
}

// A runtime that never confirms does not hold up the switch for longer than the old CA allows.
func TestSwitchBeforeEndsTheWait(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		w.add()
		w.add()
		w.settle(t)
		w.members[1].frozen = true
		w.members[1].beating = false
		var last step

		for end := w.view().newest().notAfter.Add(-time.Hour); w.now.Before(end); w.pass(time.Hour) {
			for range 8 {
				if last = w.step(); last.action == actionNone {
					break
				}
			}

			w.issueAsked()
			w.load(w.members[0])
		}

		if newest := w.view().newest().fingerprint; w.server.signer != newest {
			t.Fatalf("an hour before the old CA ends, the server has a certificate of %s, want one of %s: %+v",
				w.server.signer, newest, last)
		}
	})
}

// issueAsked is cert-manager that renews nothing unasked.
func (w *world) issueAsked() {
	for slices.ContainsFunc(w.authorities, func(a authority) bool { return a.fingerprint == "" }) {
		w.issue(0)
	}

	if w.server.issuing {
		w.issue(0)
	}

	for i, m := range w.members {
		if m.issued.issuing {
			w.issue(i + 1)
		}
	}
}

// rotating is in the middle of a rotation: the second CA signs for runtimes already.
func rotating(now time.Time) view {
	return view{
		now: now, propagation: propagation,
		authorities: []authority{
			{generation: 1, fingerprint: "a", key: "a", notAfter: now.Add(200 * day)},
			{generation: 2, fingerprint: "b", key: "b", notAfter: now.Add(365 * day)},
		},
		clientSigner: 2, serverSigner: 1,
		server:    leaf{name: "server", present: true, signer: "a"},
		published: published{present: true, current: true, since: now.Add(-time.Hour)},
	}
}

// steady has one CA, which was issued for life, and ends after rest.
func steady(now time.Time, life, rest time.Duration) view {
	return view{
		now:          now,
		propagation:  propagation,
		authorities:  []authority{{generation: 1, fingerprint: "a", key: "a", notAfter: now.Add(rest), life: life}},
		clientSigner: 1, serverSigner: 1,
		server:    leaf{name: "server", present: true, signer: "a"},
		published: published{present: true, current: true, since: now.Add(-time.Hour)},
	}
}

// adopted has one CA in an existing bundle, which was imported if it is known.
func adopted(now time.Time, known bool) view {
	return view{
		now: now, propagation: propagation,
		published: published{present: true, since: now},
		authorities: []authority{{
			generation: 1, fingerprint: "existing", key: "existing", notAfter: now.Add(caLife), life: caLife, known: known,
		}},
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()

	now := time.Unix(1e9, 0)
	aged := func(life, rest time.Duration) func(*view) {
		return func(v *view) { *v = steady(now, life, rest) }
	}
	for name, tt := range map[string]struct {
		change func(*view) // of a steady state, or to another one
		want   action
	}{
		"certificates that cannot be issued take no places": {func(v *view) {
			*v = rotating(now)
			v.runtimes = []leaf{{runtime: "good", name: "good", present: true, signer: "a"}}

			for i := range issuingAtOnce {
				id := core.RuntimeID("denied" + strconv.Itoa(i))
				v.runtimes = append(v.runtimes, leaf{runtime: id, name: string(id), failed: now.Add(-time.Hour)})
			}
		}, actionReissue},
		"a CA that is expired is replaced":                                                  {aged(365*day, -time.Minute), actionCreate},
		"a CA that has a shorter life than options allow for is not replaced at once":       {aged(32*day, 32*day), actionNone},
		"a CA that has a shorter life than options allow for is replaced in its last third": {aged(33*day, 10*day), actionCreate},
		"a CA is replaced when the options say so":                                          {aged(365*day, rotateBefore), actionCreate},
		"a CA that was issued anew in its generation is discarded": {func(v *view) {
			v.authorities[0].fingerprint = "b"
			v.authorities[0].replaced = true
		}, actionDiscard},
		"a CA after a discarded one gets a new number": {func(v *view) {
			v.authorities = nil
			v.published.newest = 2
		}, actionCreate},
		"a CA after a discarded one does not sign before every listener trusts it": {func(v *view) {
			v.authorities[0] = authority{generation: 2, fingerprint: "b", key: "b", notAfter: now.Add(300 * day)}
			v.published.since = now
		}, actionNone},
		"a server certificate of a lost CA is replaced when the listener's Secret is lost, too": {func(v *view) {
			v.server.signer = "lost"
			v.published = published{}
		}, actionReissueServer},
		"a server certificate that is being replaced is waited for": {func(v *view) {
			v.server.signer = "lost"
			v.server.issuing = true
			v.published = published{}
		}, actionNone},
		"a server certificate of a lost CA ends the wait for confirmations before it expires": {func(v *view) {
			*v = rotating(now)
			v.authorities, v.server.notAfter = v.authorities[1:], now.Add(switchBefore)
			v.unconfirmed = []core.RuntimeID{"silent"}
		}, actionSignServer},
		// It is in the bundle of all peers, although nothing of this set is published.
		"an imported CA signs for runtimes at once": {func(v *view) { *v = adopted(now, true) }, actionSignClients},
		"an imported CA signs for the server next": {func(v *view) {
			*v = adopted(now, true)
			v.clientSigner = 1
		}, actionSignServer},
		"the first certificate of an imported CA is published": {func(v *view) {
			*v = adopted(now, true)
			v.clientSigner = 1
			v.serverSigner = 1
			v.server = leaf{present: true, signer: "existing", notAfter: now.Add(day)}
		}, actionPublish},
		"another CA beside an existing bundle waits": {func(v *view) { *v = adopted(now, false) }, actionNone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			v := steady(now, 365*day, 300*day)
			tt.change(&v)
			if s := plan(v); s.action != tt.want {
				t.Errorf("action %q, want %q: %+v", s.action, tt.want, s)
			}
		})
	}
}

// The annotation of a former rotation stays on the Issuer. It names another CA, older or younger
// than the one of the present rotation.
func TestAnOldRequestToSwitchDoesNotCount(t *testing.T) {
	t.Parallel()

	now := time.Unix(1e9, 0)

	for requested, want := range map[int]action{0: actionNone, 1: actionNone, 3: actionNone, 2: actionSignServer} {
		v := rotating(now)
		v.unconfirmed = []core.RuntimeID{"silent", "offline"}
		v.switchAnyway = requested
		s := plan(v)
		if s.action != want || !slices.Equal(s.waiting, v.unconfirmed) {
			t.Errorf("switch-anyway %d: action %q, waiting for %v, want %q for %v",
				requested, s.action, s.waiting, want, v.unconfirmed)
		}
	}
}

func TestObjectName(t *testing.T) {
	t.Parallel()

	tests := []struct{ id, want string }{
		{"runtime-a", "^runtime-a-watcher-tls$"},
		{"3c1dd6f0-1f1a-4b4c-9a0e-3f6b1c9f0a11", "^3c1dd6f0-1f1a-4b4c-9a0e-3f6b1c9f0a11-watcher-tls$"},
		{"Runtime-A", "^runtime-a-[0-9a-f]{10}-watcher-tls$"},
		{"a.b", "^a-b-[0-9a-f]{10}-watcher-tls$"},
		{"-a-", "^a-[0-9a-f]{10}-watcher-tls$"},
		{"ÄÖ", "^[0-9a-f]{10}-watcher-tls$"},
	}
	for _, test := range tests {
		if have := objectName(core.RuntimeID(test.id), clientSuffix); !regexp.MustCompile(test.want).MatchString(have) {
			t.Errorf("name of %q is %q, want %s", test.id, have, test.want)
		}
	}
}

// Every ID that may have a certificate has a name of its own that Kubernetes takes.
func TestObjectNames(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfNDistinct(rapid.String(), 2, 2, rapid.ID).Draw(t, "ids")
		a := core.RuntimeID(ids[0])
		b := core.RuntimeID(ids[1])
		if checkID(a) != nil || checkID(b) != nil {
			return
		}

		nameA := objectName(a, clientSuffix)
		nameB := objectName(b, clientSuffix)
		if errs := validation.IsDNS1123Subdomain(nameA); len(errs) > 0 || nameA == nameB ||
			nameA == objectName(b, webhookSuffix) {
			t.Fatalf("%q and %q: names %q and %q: %v", a, b, nameA, nameB, errs)
		}
	})
}

func TestInvalidRuntimes(t *testing.T) {
	t.Parallel()

	set := &Certificates{
		names: objectNames{set: "watcher"}, namespace: "default", dnsNames: []string{"Listener.example"}, opts: Options{}.withDefaults(),
	}

	tests := map[string]Runtime{
		"no ID":             {Domain: "a.example"},
		"ID too long":       {ID: core.RuntimeID(strings.Repeat("x", 65)), Domain: "a.example"},
		"ID with a newline": {ID: "a\nb", Domain: "a.example"},
		"ID not UTF-8":      {ID: "a\xff", Domain: "a.example"},
		"no domain":         {ID: "a"},
		"wildcard":          {ID: "a", Domain: "*.example"},
		"address":           {ID: "a", Domain: "192.0.2.1"},
		"URL":               {ID: "a", Domain: "https://a.example"},
		"blank":             {ID: "a", Domain: "a b"},
		"of the listener":   {ID: "a", Domain: "listener.EXAMPLE."},
	}
	for name, r := range tests {
		if err := set.validateRuntime(r); !errors.Is(err, errInvalidRuntime) {
			t.Errorf("%s: %v, want %v", name, err, errInvalidRuntime)
		}
	}

	check(t, set.validateRuntime(Runtime{ID: core.RuntimeID(strings.Repeat("x", 64)), Domain: "A.example."}))
}

func TestNewNamesWhatIsWrong(t *testing.T) {
	t.Parallel()

	_, err := New(nil, Parts{
		Name:        types.NamespacedName{Name: "Upper"},
		DNSNames:    []string{"*"},
		Unconfirmed: nil,
	}, Options{
		Duration: 1, RenewBefore: 1, CADuration: 1, Propagation: -1, Service: "a b",
		ImportCA: types.NamespacedName{Name: "a"}, ListenerSecret: types.NamespacedName{Namespace: "b"},
		AdditionalCAs: []types.NamespacedName{{}},
	})
	if err == nil {
		t.Fatal("no error")
	}

	for _, want := range []string{
		`"Upper"`, "want a client", "a namespace", "confirmations", `"*"`,
		"Duration", "RenewBefore", "CADuration", "Propagation", "Service",
		"ImportCA", "ListenerSecret", "AdditionalCAs",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not name %s: %v", want, err)
		}
	}

	_, err = New(nil, Parts{
		Name:        types.NamespacedName{},
		DNSNames:    []string{"Runtime-Watcher.runtime-watcher.svc."},
		Unconfirmed: nil,
	}, Options{})
	if !strings.Contains(err.Error(), "a name other than") {
		t.Errorf("every webhook could act as the server: %v", err)
	}
	if err := (Options{}).withDefaults().validate(nil); err != nil {
		t.Error("the defaults:", err)
	}
}

// The rule of all options: a duration below 1 ms is a number without a unit.
func TestPropagationNeedsAUnit(t *testing.T) {
	t.Parallel()

	tests := map[time.Duration]bool{
		-time.Second:         false,
		5:                    false,
		time.Millisecond - 1: false,
		0:                    true, // the default
		time.Millisecond:     true,
	}
	for propagation, valid := range tests {
		err := Options{Propagation: propagation}.withDefaults().validate(nil)
		if (err == nil) != valid {
			t.Errorf("Propagation %v: %v", propagation, err)
		}
		if err != nil && !strings.Contains(err.Error(), "Propagation "+propagation.String()) {
			t.Errorf("error does not name Propagation %v: %v", propagation, err)
		}
	}
}
