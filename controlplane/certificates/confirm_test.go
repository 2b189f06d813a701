package certificates_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

func beat(epoch string, trusts ...string) core.Batch {
	return core.Batch{Epoch: epoch, Heartbeat: &core.Heartbeat{
		Number: 1, Interval: time.Minute, Instance: epoch, CAFingerprints: trusts,
	}}
}

// Silence, another CA, or one replica that lags do not confirm.
func TestFromFleet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, err := fleet.New(fleet.Options{})
		if err != nil {
			t.Fatal(err)
		}

		f.Receiver().Observe(core.Peer{ID: "trusts"}, "m", beat("1", "old", "new"), nil)
		f.Receiver().Observe(core.Peer{ID: "lags"}, "m", beat("2", "old", "new"), nil)
		f.Receiver().Observe(core.Peer{ID: "lags"}, "m", beat("3", "old"), nil)
		f.Receiver().Observe(core.Peer{ID: "two-managers"}, "m", beat("4", "new"), nil)
		f.Receiver().Observe(core.Peer{ID: "two-managers"}, "n", beat("4", "old"), nil)
		f.Receiver().Observe(core.Peer{ID: "no-heartbeat"}, "m", core.NewBatch(core.WatchEvent{}), nil)
		all := []core.RuntimeID{"trusts", "lags", "two-managers", "no-heartbeat", "never-heard"}

		confirmed := certificates.FromFleet(f, time.Minute)
		if diff := cmp.Diff(all, confirmed("new", all)); diff != "" {
			t.Errorf("of a fleet that has just started (-want +have):\n%s", diff)
		}

		time.Sleep(time.Minute)
		if diff := cmp.Diff(all[1:], confirmed("new", all)); diff != "" {
			t.Errorf("unconfirmed (-want +have):\n%s", diff)
		}
	})
}

// A standby hears nothing until it takes the lead: then the first replica that is heard does not
// speak for the others.
func TestFromFleetOfAStandby(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, err := fleet.New(fleet.Options{})
		if err != nil {
			t.Fatal(err)
		}

		confirmed := certificates.FromFleet(f, 0)
		one := []core.RuntimeID{"one"}
		time.Sleep(time.Hour)
		f.Receiver().Observe(core.Peer{ID: "one"}, "m", beat("1", "new"), nil)

		if diff := cmp.Diff(one, confirmed("new", one)); diff != "" {
			t.Errorf("at once (-want +have):\n%s", diff)
		}

		time.Sleep(90 * time.Second)
		if have := confirmed("new", one); len(have) > 0 {
			t.Errorf("after the warm-up: %v, want none", have)
		}
	})
}

// A revoked runtime holds no rotation, which often follows the theft of its key. When it sends with
// a new certificate, the rotation waits for it as for all others.
func TestFromFleetWithoutRevokedRuntimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, err := fleet.New(fleet.Options{})
		if err != nil {
			t.Fatal(err)
		}

		f.Receiver().Observe(core.Peer{ID: "stolen", Fingerprint: "1"}, "m", beat("1", "old"), nil)
		f.Receiver().Observe(core.Peer{ID: "other", Fingerprint: "2"}, "m", beat("2", "old", "new"), nil)
		all := []core.RuntimeID{"stolen", "other"}
		confirmed := certificates.FromFleet(f, time.Minute)
		time.Sleep(time.Minute)

		if have := confirmed("new", all); len(have) != 1 || have[0] != "stolen" {
			t.Errorf("unconfirmed before the revocation: %v, want stolen", have)
		}

		f.Receiver().Revoke(func(peer core.Peer) bool { return peer.Fingerprint == "1" })
		if have := confirmed("new", all); len(have) > 0 {
			t.Errorf("unconfirmed after the revocation: %v, want none", have)
		}

		f.Receiver().Observe(core.Peer{ID: "stolen", Fingerprint: "3"}, "m", beat("3", "old"), nil)
		if have := confirmed("new", all); len(have) != 1 || have[0] != "stolen" {
			t.Errorf("unconfirmed with a new certificate: %v, want stolen", have)
		}

		// The stolen key is refused meanwhile, also while the runtime is silent.
		time.Sleep(time.Hour)
		f.Receiver().Refuse("stolen", "m", core.ReasonRevoked)

		if have := confirmed("new", all[:1]); len(have) != 1 {
			t.Errorf("unconfirmed while the runtime is silent: %v, want stolen", have)
		}
	})
}
