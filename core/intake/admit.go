package intake

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// Admit returns nil for a sender that is not revoked, and otherwise a [*Failure]. Receive calls it
// for each batch. A transport calls it earlier, so that a revoked sender learns nothing else, uses
// nothing of the share of its runtime, and loses its connection.
//
// The failure of a revoked sender wraps [core.ErrForbidden], with the reason "revoked". While the
// list has not been read yet, the failure wraps [core.ErrNotReady].
func (in *Intake) Admit(peer core.Peer) error {
	f := in.admit(&peer)
	if f == nil {
		return nil // And no error with a nil in it.
	}
	return f
}

// admit returns nil for a sender that may go on. Without a list it blames this replica, because
// another replica may have the list.
func (in *Intake) admit(peer *core.Peer) *Failure {
	if in.opts.Revocations == nil {
		return nil
	}

	list := in.opts.Revocations.RevocationList()
	switch {
	case list == nil:
		return &Failure{
			Fault: FaultOfReplica, class: core.ErrNotReady, reason: reasons.NotReady, cause: errNoList,
		}
	case list.Revokes(*peer):
		in.noteRevoked(peer)
		return revoked()
	default:
		return nil
	}
}

// noteRevoked shows the fleet a revoked runtime that the fleet expects and that has sent no batch
// yet. Other runtimes are found when the list changes.
func (in *Intake) noteRevoked(peer *core.Peer) {
	if in.opts.Fleet == nil {
		return
	}
	for manager := range in.handlers {
		in.opts.Fleet.Receiver().Refuse(peer.ID, manager, reasons.Revoked)
	}
}

func revoked() *Failure {
	return &Failure{
		Fault: faultOfSender, class: core.ErrForbidden, reason: reasons.Revoked, refused: true,
		cause: fmt.Errorf("%w: the certificate or a name of the sender is revoked", core.ErrForbidden),
	}
}

// IsRevoked reports whether err, from an intake, is the refusal of a revoked sender.
func IsRevoked(err error) bool {
	f, ok := errors.AsType[*Failure](err)
	return ok && f.reason == reasons.Revoked
}

// RevocationsReady returns an error that wraps [core.ErrNotReady] while the list of revoked senders
// has not been read yet.
func (in *Intake) RevocationsReady() error {
	if in.opts.Revocations == nil || in.opts.Revocations.RevocationList() != nil {
		return nil
	}
	return errNoList
}

var errNoList = fmt.Errorf("%w: the list of revoked senders was not read yet", core.ErrNotReady)

// revocationsEvery is the time between two comparisons of the list of revoked senders. A connection
// of a revoked sender ends within a second.
const revocationsEvery = 100 * time.Millisecond

// FollowRevocations passes each new list of revoked senders to the fleet and calls changed with it,
// until ctx ends. A transport that sees connections closes the connections of revoked senders in
// changed. For each list, changed is called once more after 100 ms, because a request that began
// before the change can identify its connection after the change. Without [Options].Revocations,
// FollowRevocations returns immediately.
func (in *Intake) FollowRevocations(ctx context.Context, changed func(*RevocationList)) {
	if in.opts.Revocations == nil {
		return
	}

	var shown, before *RevocationList
	refresh := func() {}
	if r, ok := in.opts.Revocations.(RevocationRefresher); ok {
		refresh = r.RefreshRevocations
	}

	showChange := func() {
		refresh()
		list := in.opts.Revocations.RevocationList()
		isShownTwice := shown == before && list == shown
		if isShownTwice {
			return
		}

		before = shown
		shown = list
		if list == nil {
			return
		}
		if in.opts.Fleet != nil {
			in.opts.Fleet.Receiver().Revoke(list.Revokes)
		}
		changed(list)
	}

	showChange()
	periodic.Call(ctx, revocationsEvery, showChange)
}
