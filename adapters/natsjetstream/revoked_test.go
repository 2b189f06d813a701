package natsjetstream_test

import (
	"errors"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
)

// A revoked runtime triggers nothing, by any of the names that the server knows it by. Its
// forwarder gets the refusal, and the stream keeps nothing of it. Others go on.
func TestRevokedRuntimes(t *testing.T) {
	t.Parallel()

	watched := must(fleet.New(fleet.Options{}))
	live := intake.NewLiveRevocations(intake.RevocationOptions{})
	check(t, live.Replace([]byte("name:runtime-3")))
	s := newScene(t, allowAll(), natsjetstream.Options{
		Revocations: live, Fleet: watched,
		Peer: func(runtime core.RuntimeID) core.Peer {
			return core.Peer{ID: runtime, CommonName: string(runtime), DNSNames: []string{string(runtime) + ".example.com"}}
		},
	})

	stolen := s.forwarder("runtime-1", natsjetstream.ForwarderOptions{})
	other := s.forwarder("runtime-2", natsjetstream.ForwarderOptions{})
	mustForward(t, stolen, beat(1, "before"))
	mustForward(t, other, beat(1, "before"))
	s.awaitHandled(2)

	check(t, live.Replace([]byte("name:runtime-1.example.com")))
	eventually(t, "the fleet shows it", func() bool {
		status := watched.Get("runtime-1", manager)
		return status.State == fleet.Stale && status.Reason == "revoked"
	})

	if err := forward(t, stolen, numbered(2, "after")); !errors.Is(err, core.ErrForbidden) {
		t.Errorf("Forward = %v, want ErrForbidden", err)
	}

	s.awaitFate("handed_back revoked", 1)
	mustForward(t, s.forwarder("runtime-1", noAnswer), numbered(2, "unawaited"))
	s.awaitFate("terminated revoked", 1)
	mustForward(t, other, numbered(2, "after"))
	s.awaitHandled(3)
	s.awaitEmpty()

	check(t, live.Replace(nil))
	mustForward(t, stolen, numbered(2, "after"))
	s.awaitHandled(4)

	if err := s.consumer(allowAll(), &coretest.Recorder{}, natsjetstream.Options{
		Revocations: intake.NewLiveRevocations(intake.RevocationOptions{}),
	}).Ready(); err == nil {
		t.Error("a consumer without its list is ready")
	}
}
