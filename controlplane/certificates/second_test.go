package certificates

import (
	"strconv"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// A rotation begins during another one, and not beside three CAs.
func TestARotationBesideOthers(t *testing.T) {
	t.Parallel()

	now := time.Unix(1e9, 0)

	for _, count := range []int{1, 2, maxAuthorities, maxAuthorities + 1} {
		v := steady(now, 365*day, 300*day)
		v.authorities = nil

		for n := range count {
			name := strconv.Itoa(n + 1)
			v.authorities = append(v.authorities, authority{generation: n + 1, fingerprint: name, key: name, notAfter: now})
		}

		v.clientSigner = count
		if _, begins := renewRule(v); begins != (count < maxAuthorities) {
			t.Errorf("with %d CAs, another one is created: %t", count, begins)
		}
	}
}

// Certificates that are being issued take places of the next ones.
func TestIssuingCertificatesTakePlaces(t *testing.T) {
	t.Parallel()
	for issuing, want := range map[int]int{0: 3, issuingAtOnce - 3: 3, issuingAtOnce - 1: 1, issuingAtOnce: 0, issuingAtOnce + 1: 0} {
		v := rotating(time.Unix(1e9, 0))
		for n := range issuing + 3 {
			id := core.RuntimeID(strconv.Itoa(n))
			v.runtimes = append(v.runtimes, leaf{runtime: id, present: true, signer: "a", issuing: n < issuing})
		}

		if s, _ := reissueRule(v); len(s.reissue) != want {
			t.Errorf("beside %d, %d certificates are issued, want %d", issuing, len(s.reissue), want)
		}
	}
}

// One certificate has failed a moment ago, and another one a minute ago.
func TestAFailedIssuanceWaits(t *testing.T) {
	t.Parallel()

	v := rotating(time.Unix(1e9, 0))
	for id, ago := range map[core.RuntimeID]time.Duration{"late": failedIssuanceInterval - 1, "long ago": failedIssuanceInterval} {
		v.runtimes = append(v.runtimes, leaf{runtime: id, present: true, signer: "a", failed: v.now.Add(-ago)})
	}

	if s, _ := reissueRule(v); len(s.reissue) != 1 || s.reissue[0].runtime != "long ago" || len(s.waiting) != 2 {
		t.Errorf("reissued are %+v, want the one that failed a minute ago", s.reissue)
	}
}

// The former CA of the server has a short life, and the next one a long life. The former one
// decides when the switch waits no longer.
func TestTheSwitchFollowsTheFormerCA(t *testing.T) {
	t.Parallel()

	now := time.Unix(1e9, 0)

	for rest, want := range map[time.Duration]bool{5 * day: false, day + 1: false, day: true} {
		v := rotating(now)
		v.authorities[0].life = 9 * day
		v.authorities[0].notAfter = now.Add(rest)
		v.authorities[1].life = 365 * day

		if have := v.isSwitchForced(); have != want {
			t.Errorf("with %v left, the switch is made anyway: %t, want %t", rest, have, want)
		}
	}
}

// The next CA is not issued yet. It stays, and the CA in use, too.
func TestANextCAThatIsNotIssuedStays(t *testing.T) {
	t.Parallel()

	v := steady(time.Unix(1e9, 0), 365*day, 300*day)
	v.authorities = append(v.authorities, authority{generation: 2})
	if s := plan(v); s.action != actionNone || s.phase != PhaseCreating || len(s.remove) > 0 {
		t.Errorf("got %+v, want it to wait for the CA", s)
	}
}

// A certificate is of a CA with its subject and its key. Two CAs may have one of both in common.
func TestACertificateOfTwoSimilarCAs(t *testing.T) {
	t.Parallel()

	ca := authority{fingerprint: "f", name: "subject", key: "key"}
	for name, tt := range map[string]struct {
		leaf leaf
		want bool
	}{
		"both":                {leaf{present: true, issuer: "subject", signer: "key"}, true},
		"another subject":     {leaf{present: true, issuer: "other", signer: "key"}, false},
		"another key":         {leaf{present: true, issuer: "subject", signer: "other"}, false},
		"no key":              {leaf{present: true, issuer: "subject"}, true},
		"no key and another":  {leaf{present: true, issuer: "other"}, false},
		"not there":           {leaf{issuer: "subject", signer: "key"}, false},
		"nothing but present": {leaf{present: true}, false},
	} {
		if have := ca.hasSigned(tt.leaf); have != tt.want {
			t.Errorf("%s: %t, want %t", name, have, tt.want)
		}
	}

	if (authority{name: "subject", key: "key"}).hasSigned(leaf{present: true, issuer: "subject", signer: "key"}) {
		t.Error("a CA that is not issued yet has signed a certificate")
	}
}

// Certificates that are requested for the first time take places, too. One that was refused takes
// none. A runtime with two certificates is named once.
func TestCertificatesThatAreNotThereYet(t *testing.T) {
	t.Parallel()

	v := rotating(time.Unix(1e9, 0))
	for n := range issuingAtOnce - 1 {
		v.runtimes = append(v.runtimes, leaf{runtime: core.RuntimeID(strconv.Itoa(n))})
	}

	v.runtimes = append(v.runtimes, leaf{runtime: "refused", failed: v.now.Add(-time.Hour)})
	for range 3 {
		v.runtimes = append(v.runtimes, leaf{runtime: "old", present: true, signer: "a"})
	}

	s, _ := reissueRule(v)
	if len(s.reissue) != 1 || s.reissue[0].runtime != "old" {
		t.Errorf("reissued are %+v, want one, as %d are requested", s.reissue, issuingAtOnce-1)
	}
	if want := issuingAtOnce + 1; len(s.waiting) != want {
		t.Errorf("%d runtimes wait, want %d, each once", len(s.waiting), want)
	}
}

// A long time of propagation is waited for in parts, so that a change is noticed meanwhile.
func TestALongPropagationIsCheckedMeanwhile(t *testing.T) {
	t.Parallel()

	now := time.Unix(1e9, 0)

	for rest, want := range map[time.Duration]time.Duration{
		time.Second: time.Second, longestRequeue: longestRequeue, longestRequeue + time.Second: longestRequeue, 99 * longestRequeue: longestRequeue,
	} {
		v := rotating(now)
		v.clientSigner = 1
		v.propagation = 100 * longestRequeue
		v.published.since = now.Add(rest - v.propagation)

		if s, waits := switchClientsRule(v); !waits || s.action != actionNone || s.after != want {
			t.Errorf("with %v left: %+v, want to wait for %v", rest, s, want)
		}
	}
}

// All CAs before the newest one lose their keys in one step.
func TestAllFormerCAsRetire(t *testing.T) {
	t.Parallel()

	v := rotating(time.Unix(1e9, 0))
	v.authorities = nil

	for n := range maxAuthorities {
		v.authorities = append(v.authorities, authority{generation: n + 1, fingerprint: strconv.Itoa(n)})
	}

	if s, retires := retireRule(v); !retires || len(s.remove) != maxAuthorities-1 || s.remove[0] != 1 || s.remove[1] != 2 {
		t.Errorf("removed are %v, want all but the newest", s.remove)
	}
}

// The youngest CA of a rotation does not sign for runtimes yet. Another request for a rotation
// waits for that.
func TestARotationBeginsAfterTheLastOneWasTrusted(t *testing.T) {
	t.Parallel()
	for signer, want := range map[int]bool{1: false, 2: true} {
		v := rotating(time.Unix(1e9, 0))
		v.clientSigner = signer
		v.request = "again"
		if _, begins := renewRule(v); begins != want {
			t.Errorf("while CA %d signs for runtimes, a third CA is created: %t, want %t", signer, begins, want)
		}
	}
}

// The server waits for its certificate of the youngest CA. Nothing else is done meanwhile: a CA
// that retires too early would cut off each agent that still meets the old certificate.
func TestTheSwitchWaitsForTheCertificateOfTheServer(t *testing.T) {
	t.Parallel()

	v := rotating(time.Unix(1e9, 0))
	v.serverSigner = 2
	v.server.issuing = true
	s := plan(v)
	if s.phase != PhaseSwitching || s.action != actionNone || s.after != pollInterval || len(s.remove) > 0 {
		t.Errorf("got %+v, want it to wait for the certificate", s)
	}

	if _, waits := switchServerRule(v); !waits {
		t.Error("the rotation goes on before the server has its certificate")
	}
}
