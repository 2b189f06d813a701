package intake

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

const stolen = "0a8ba0f4b1a1b6ad5d37ea39ba0e4b1bcb5a1ea7b3f53e3b2d5a24a1cb0e6ad8"

func list(t *testing.T, text string) *RevocationList {
	t.Helper()

	l, err := ParseRevocations([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Fingerprints match in every usual notation. A name matches exactly, except for a DNS name, whose
// case is free.
func TestRevocationsMatch(t *testing.T) {
	t.Parallel()

	var pairs []string
	for i := 0; i < len(stolen); i += 2 {
		pairs = append(pairs, strings.ToUpper(stolen[i:i+2]))
	}

	sender := core.Peer{
		ID: "runtime-a", CommonName: "Common Name", Fingerprint: stolen, DNSNames: []string{"A.example.com"},
		URIs: []string{"spiffe://trust/ns/A#1"}, IPs: []netip.Addr{netip.MustParseAddr("2001:db8::1")},
	}
	for line, want := range map[string]bool{
		"sha256:" + stolen:                                   true,
		"SHA256: " + strings.ToUpper(stolen):                 true,
		"sha256 Fingerprint=" + strings.Join(pairs, ":"):     true,
		"SHA256 Fingerprint=" + strings.Join(pairs, ":"):     true,
		"sha256:" + strings.Repeat("0", 64):                  false,
		"name:runtime-a  # found on a bastion":               true,
		"name:runtime-A":                                     false,
		"  name: Common Name\r\n":                            true,
		"name:common name":                                   false,
		"name:a.EXAMPLE.com":                                 true,
		"name:example.com":                                   false,
		"name:spiffe://trust/ns/A#1":                         true,
		"name:spiffe://trust/ns/a#1":                         false,
		"name:2001:0db8:0::1":                                true,
		"name:::ffff:10.0.0.1":                               false,
		"# name:runtime-a":                                   false,
		"":                                                   false,
		"name:other\nname:third\n\n#\nsha256:" + stolen + "": true,
	} {
		if got := list(t, line).Revokes(sender); got != want {
			t.Errorf("%q revokes: %v, want %v", line, got, want)
		}
		if list(t, line).Revokes(core.Peer{}) {
			t.Errorf("%q revokes a sender without names", line)
		}
	}

	if (*RevocationList)(nil).Revokes(sender) {
		t.Error("no list revokes a sender")
	}
}

// A list without the malformed entry would admit the sender that it was meant for.
func TestMalformedRevocationsAreNamed(t *testing.T) {
	t.Parallel()

	for _, line := range []string{
		"runtime-a", stolen, "sha256:", "sha256:" + stolen[2:], "sha256:" + stolen + "00", "sha256:" + stolen[:63] + "g",
		"sha1:" + stolen, "name:", "name: \t", "name:*.example.com", "name:a\u202eb", "name:a\xff",
		"name:" + strings.Repeat("a", 2049), "sha256=x", "{",
	} {
		text := "# a comment\nname:good\n" + line + "\nname:other\n"
		if _, err := ParseRevocations([]byte(text)); err == nil || !strings.Contains(err.Error(), "line 3, ") ||
			strings.Contains(err.Error(), "line 2") || strings.Contains(err.Error(), "line 4") {
			t.Errorf("%q: error %v, want one that names line 3 alone", line, err)
		}
	}

	_, err := ParseRevocations([]byte(strings.Repeat("x\n", 1000)))
	if err == nil || len(err.Error()) > 2000 || !strings.Contains(err.Error(), "and 990 more lines") {
		t.Errorf("error %.3000v, want a short one", err)
	}
	if _, err := ParseRevocations(make([]byte, maxRevocations+1)); err == nil {
		t.Error("a list without bound is read")
	}
}

func FuzzParseRevocations(f *testing.F) {
	for _, seed := range []string{"", "name:a\nsha256:" + stolen, "sha256 Fingerprint=00:", "name:#", " #", "name:::1"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := ParseRevocations(text)
		if (l == nil) != (err != nil) {
			t.Errorf("list %v and error %v", l, err)
		}
		if l.Revokes(core.Peer{}) {
			t.Error("a sender without names is revoked")
		}
	})
}

// Whatever the handlers and the verifier say, a revoked sender triggers nothing, and is told why.
func TestRevokedSendersAreRefused(t *testing.T) {
	t.Parallel()

	handled := 0
	live := NewLiveRevocations(RevocationOptions{})
	in := newIntake(t, verifies(is(nil), is(nil)), fails(func(string) error { handled++; return nil }, nil),
		Options{Revocations: live})
	for _, step := range []struct {
		name, text, reason string
		class              error
		fault              Fault
	}{
		{"no list yet", "?", reasons.NotReady, core.ErrNotReady, FaultOfReplica},
		{"not listed", "name:" + string(runtimeB), "", nil, 0},
		{"listed", "name:" + string(runtimeA), reasons.Revoked, core.ErrForbidden, faultOfSender},
		{"malformed: the last good list", "name:", reasons.Revoked, core.ErrForbidden, faultOfSender},
		{"empty", "", "", nil, 0},
	} {
		_ = live.Replace([]byte(step.text))
		handled = 0
		for name, err := range map[string]error{
			"Admit":            in.Admit(core.Peer{ID: runtimeA}),
			"Receive":          in.Receive(t.Context(), request(runtimeA, beating(events(2, 1)))),
			"of a lying batch": in.Receive(t.Context(), request(runtimeA, core.Batch{Source: runtimeA, Events: events(1, 1).Events})),
		} {
			f := failureOf(err)
			if step.class == nil {
				if err != nil {
					t.Errorf("%s, %s: %v", step.name, name, err)
				}
				continue
			}

			if f == nil || f.Reason() != step.reason || !errors.Is(err, step.class) || f.Fault != step.fault {
				t.Errorf("%s, %s: %+v, want %s", step.name, name, f, step.reason)
			}
			if IsRevoked(err) != (step.reason == reasons.Revoked) {
				t.Errorf("%s, %s: IsRevoked is %v", step.name, name, IsRevoked(err))
			}
		}

		if ready := in.RevocationsReady() == nil; ready != (step.reason != reasons.NotReady) {
			t.Errorf("%s: ready is %v", step.name, ready)
		}
		if want := step.class == nil; (handled > 0) != want {
			t.Errorf("%s: %d events were handled", step.name, handled)
		}
	}

	unknown := request(runtimeA, events(1, 1))
	unknown.Manager = "nobody"
	_ = live.Replace([]byte("name:" + string(runtimeA)))
	if err := in.Receive(t.Context(), unknown); !IsRevoked(err) {
		t.Errorf("%v, want that a revoked sender learns of no manager", err)
	}
}

// The fleet shows a revoked runtime within a tick, and its thief does not make it stale again.
func TestTheFleetShowsRevokedRuntimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		watched := newFleet(t, fleet.Options{})
		live := NewLiveRevocations(RevocationOptions{})
		_ = live.Replace(nil)
		in := newIntake(t, verifies(is(nil), is(nil)), fails(takes, nil), Options{Revocations: live, Fleet: watched})
		changes := 0
		go in.FollowRevocations(t.Context(), func(*RevocationList) { changes++ })

		send := func(fingerprint string, number uint64) error {
			batch := beating(core.Batch{})
			batch.Heartbeat.Number = number
			batch.Heartbeat.ID = strconv.FormatUint(number, 10)
			r := request(runtimeA, batch)
			r.Peer.Fingerprint = fingerprint
			return in.Receive(t.Context(), r)
		}

		want := func(state fleet.State, reason fleet.Reason) {
			t.Helper()
			if s := watched.Get(runtimeA, manager); s.State != state || s.Reason != reason {
				t.Errorf("the runtime is %s %q, want %s %q", s.State, s.Reason, state, reason)
			}
		}

		if err := send(stolen, 1); err != nil {
			t.Fatal(err)
		}

		time.Sleep(time.Second)
		synctest.Wait()
		want(fleet.Fresh, "")

		seen := changes
		_ = live.Replace([]byte("sha256:" + stolen))
		time.Sleep(300 * time.Millisecond)
		synctest.Wait()
		want(fleet.Stale, reasons.Revoked)
		if changes != seen+2 {
			t.Errorf("%d calls for one change, want 2", changes-seen)
		}

		if err := send(stolen, 2); !IsRevoked(err) {
			t.Errorf("%v, want that it is revoked", err)
		}

		want(fleet.Stale, reasons.Revoked)
		if err := send("new", 3); err != nil {
			t.Fatal(err)
		}

		want(fleet.Fresh, "")
		if err := send(stolen, 4); !IsRevoked(err) {
			t.Errorf("%v, want that the thief is revoked", err)
		}

		_ = live.Replace([]byte("name:other\nsha256:" + stolen))
		time.Sleep(time.Second)
		want(fleet.Fresh, "")
	})
}

// The last good list stays, and a failure is logged once for as long as it lasts.
func TestLiveRevocations(t *testing.T) {
	t.Parallel()

	var log strings.Builder
	var entries []string
	live := NewLiveRevocations(RevocationOptions{
		Logger:  slog.New(slog.NewTextHandler(&log, nil)),
		Changed: func(n int, err error) { entries = append(entries, fmt.Sprint(n, err != nil)) },
	})
	if live.RevocationList() != nil {
		t.Error("there is a list before it was read")
	}

	missing := errors.New("missing")
	live.Fail(missing)
	live.Fail(missing)
	_ = live.Replace([]byte("name:a\nname:b"))
	good := live.RevocationList()
	_ = live.Replace([]byte("name:a\nname:b"))

	for range 2 {
		if live.Replace([]byte("name")) == nil {
			t.Error("a malformed list is in use")
		}
	}

	live.Fail(missing)
	if live.RevocationList() != good {
		t.Error("the last good list did not stay")
	}

	_ = live.Replace([]byte("name:a\nname:b"))
	want := "[0 true 2 false 0 true 0 true 2 false]"
	if got := fmt.Sprint(entries); got != want {
		t.Errorf("reports %s, want %s", got, want)
	}

	for text, n := range map[string]int{
		"no sender is admitted until": 1, "list of revoked senders is in use": 2, "the last good list stays": 2, "line 1": 1,
	} {
		if got := strings.Count(log.String(), text); got != n {
			t.Errorf("%d lines with %q, want %d:\n%s", got, text, n, &log)
		}
	}
}
