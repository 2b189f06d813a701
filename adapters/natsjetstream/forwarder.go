package natsjetstream

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// Forwarder is a [core.Forwarder] that publishes each batch to the stream of its manager. Create
// one per connection with [NewForwarder]. It is safe for concurrent use, and starts no goroutine.
//
// Errors classify as those of HTTP do. A manager without a stream is [core.ErrUnknownManager]. A
// full stream is [core.ErrNotReady]. A subject that the runtime may not use is [core.ErrForbidden].
type Forwarder struct {
	conn    *nats.Conn
	stream  jetstream.JetStream
	runtime core.RuntimeID
	opts    ForwarderOptions
	denials denials
	ids     ids
}

var _ core.Forwarder = (*Forwarder)(nil)

var (
	errNoConnection = errors.New("natsjetstream: connection is nil")
	errNoRuntime    = errors.New("natsjetstream: runtime is empty")
	errInbox        = errors.New("natsjetstream: the connection has another inbox prefix, want that of ConnectOptions")
)

// NewForwarder returns a forwarder for a runtime, as the NATS server knows it by its certificate.
// It does not use the network. The connection has [ConnectOptions], and the caller closes it. Its
// error handler is called as before.
func NewForwarder(conn *nats.Conn, runtime core.RuntimeID, opts ForwarderOptions) (*Forwarder, error) {
	switch {
	case conn == nil:
		return nil, errNoConnection
	case runtime == "":
		return nil, errNoRuntime
	case conn.Opts.InboxPrefix != InboxPrefix(runtime):
		return nil, fmt.Errorf("%w: %q", errInbox, InboxPrefix(runtime))
	}
	stream, err := jetstream.New(conn)
	if err != nil {
		return nil, fmt.Errorf("natsjetstream: %w", err)
	}
	f := &Forwarder{conn: conn, stream: stream, runtime: runtime, opts: opts.withDefaults()}
	f.denials.listen(conn)
	return f, nil
}

// Forward implements [core.Forwarder]. It blocks until the operator has answered, or has not
// answered within [ForwarderOptions.AnswerWait] after the stream stored the batch. The end of ctx
// or [ForwarderOptions.Timeout] ends it with an error; the batch may be stored nevertheless.
func (f *Forwarder) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	if batch.IsEmpty() {
		return nil
	}
	manager, err := core.ParseManager(string(manager)) // It becomes part of a subject.
	if err != nil {
		return err
	}
	subject := Subject(manager, f.runtime)
	batch = f.claim(batch)
	encoded, err := contract.V3.Encode(&batch)
	if err != nil {
		return &publishError{Subject: subject, Err: err, reason: reasonMaterial} // The fault is the claim.
	}
	for i, err := range encoded.Failed {
		// An event that does not fit is sent with the next batch. The others are permanent.
		if !errors.Is(err, core.ErrNotSent) {
			encoded.Failed[i] = &publishError{Subject: subject, Err: err, reason: reasonUnsendable, permanent: true}
		}
	}
	if encoded.Body == nil {
		return encoded.Failed
	}
	ctx, cancel := context.WithTimeout(ctx, f.opts.Timeout)
	defer cancel()
	m := &message{subject: subject, stream: streamName(manager), request: &encoded, events: len(batch.Events)}
	return merge(encoded.Failed, f.send(ctx, m))
}

// claim returns the batch with the name of the runtime, and with IDs for events without one.
func (f *Forwarder) claim(batch core.Batch) core.Batch {
	batch.Source = cmp.Or(batch.Source, f.runtime)
	if slices.ContainsFunc(batch.Events, func(e core.Numbered) bool { return e.ID == "" }) {
		batch.Events = slices.Clone(batch.Events)
		for i := range batch.Events {
			batch.Events[i].ID = cmp.Or(batch.Events[i].ID, rand.Text())
		}
	}
	return batch
}

// merge joins the events that were not sent with the answer to the others.
func merge(unsent core.EventErrors, err error) error {
	failed, partial := errors.AsType[core.EventErrors](err)
	switch {
	case len(unsent) == 0, err != nil && !partial:
		return err
	case len(failed) == 0:
		return unsent
	}
	all := maps.Clone(unsent)
	maps.Copy(all, failed)
	return all
}
