package controllerruntime

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// Registered lets an event pass if an object represents the runtime that the certificate names. If
// the event names an owner, the owner must be that object. Registered is weaker than
// [listener.SANPinning], because it compares no domain: if the CA issues a certificate for a wrong
// name, one runtime can send events for another runtime. Registered is stronger than
// [listener.InsecureAllowAll], which accepts any owner and events of deleted runtimes.
//
// The reason of a refusal is "runtime_unknown", "owner_missing" or "owner_mismatch". Registered
// does not block. Until the cache is synced, its error wraps [core.ErrNotReady].
func Registered(runtimes *Runtimes) core.Verifier { return registered{runtimes} }

type registered struct{ runtimes *Runtimes }

// Validate returns an error if the verifier has no runtimes, so that a listener refuses it.
func (r registered) Validate() error {
	if r.runtimes == nil {
		return errors.New("runtimes of the verifier Registered are nil: want the result of NewRuntimes")
	}
	return nil
}

// Verify implements [core.Verifier].
func (r registered) Verify(_ context.Context, peer core.Peer, event *core.WatchEvent) error {
	owned, err := r.runtimes.findObjects(indexRuntime, string(peer.ID))
	if err != nil {
		return err
	}
	if len(owned) == 0 {
		cause := fmt.Errorf("no %s represents runtime %q", r.runtimes.kind, peer.ID)
		return listener.Forbidden(ReasonRuntimeUnknown, cause)
	}
	if event.Owner == (types.NamespacedName{}) {
		return nil
	}

	_, err = r.runtimes.ownerOf(event.Owner, peer.ID, true)
	return err
}
