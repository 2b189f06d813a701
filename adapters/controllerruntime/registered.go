package controllerruntime

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// Registered lets an event pass if an object stands for the runtime that the certificate names. An
// owner in the event must be such an object. It is weaker than [listener.SANPinning], because no
// domain is compared: with a CA that issues a certificate for a wrong name, one runtime can trigger
// another. It is stronger than [listener.InsecureAllowAll], with which a runtime can also name any
// owner, and a runtime that was deleted still costs work.
//
// It refuses an event with the reason "runtime_unknown", "owner_missing" or "owner_mismatch". It
// does not block. Its error wraps [core.ErrNotReady] while the cache is not synced.
func Registered(runtimes *Runtimes) core.Verifier { return registered{runtimes} }

type registered struct{ runtimes *Runtimes }

// Validate makes a listener refuse a verifier without runtimes.
func (r registered) Validate() error {
	if r.runtimes == nil {
		return errors.New("runtimes of the verifier Registered are nil: want those of NewRuntimes")
	}
	return nil
}

// Verify implements [core.Verifier].
func (r registered) Verify(_ context.Context, peer core.Peer, event *core.WatchEvent) error {
	owned, err := r.runtimes.find(indexRuntime, string(peer.ID))
	if err != nil {
		return err
	}
	if len(owned) == 0 {
		cause := fmt.Errorf("no %s stands for runtime %q", r.runtimes.kind, peer.ID)
		return listener.Forbidden(ReasonRuntimeUnknown, cause)
	}
	if event.Owner == (types.NamespacedName{}) {
		return nil
	}
	_, err = r.runtimes.owner(event.Owner, peer.ID, true)
	return err
}
