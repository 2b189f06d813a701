package httpmtls

import (
	"context"
	"net/url"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
)

// Forward implements [core.Forwarder]. It blocks until the answer arrives, ctx ends or
// [Options.Timeout] has passed. An empty batch is not sent.
func (f *Forwarder) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	batch = f.prepareBatch(batch)
	if batch.IsEmpty() {
		return nil
	}

	manager, err := core.ParseManager(string(manager)) // It becomes part of a URL.
	if err != nil {
		return permanent(f.address, core.ReasonInvalidManager, err)
	}

	target := &url.URL{Scheme: f.address.Scheme, Host: f.address.Host, Path: f.version.Path(manager)}
	encoded, err := f.version.Encode(&batch)
	if err != nil {
		return failure(target, ReasonMaterial, err) // The fault is the claim, and not an event.
	}

	encoded.Unsendable(func(err error) error { return permanent(target, ReasonUnsendable, err) })
	if encoded.Body == nil {
		return encoded.Failed
	}

	m := &message{Request: &encoded, events: len(batch.Events)}
	err = f.sendInSlot(ctx, target, m)
	f.noteRecheck(manager, m.recheckAfter)
	return encoded.Result(err)
}

// RecheckAfter returns the delay after which the receiver requests another reconcile unless a
// reconcile has read the write, according to its last answer for the manager. It returns 0 if the
// last call failed, if the answer does not contain a delay, and before the first answer. The outbox
// asks after each call, because the result of Forward cannot contain the delay.
func (f *Forwarder) RecheckAfter(manager core.Manager) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rechecks[manager]
}

// noteRecheck keeps the times of at most [defaults.MaxManagers] managers. Strangers can invent
// names of managers.
func (f *Forwarder) noteRecheck(manager core.Manager, after time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()

	delete(f.rechecks, manager)
	if after <= 0 {
		return
	}

	if len(f.rechecks) >= defaults.MaxManagers {
		clear(f.rechecks) // Their next answers bring the times back.
	}
	if f.rechecks == nil {
		f.rechecks = make(map[core.Manager]time.Duration)
	}
	f.rechecks[manager] = after
}

// prepareBatch adds the claim of the runtime, or leaves out the heartbeat, which an older contract
// cannot carry.
func (f *Forwarder) prepareBatch(batch core.Batch) core.Batch {
	if f.version.Numbered() {
		return contract.Claim(batch, f.identity())
	}

	batch.Heartbeat = nil
	return batch
}
