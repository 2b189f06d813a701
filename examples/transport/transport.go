// Package transport contains a core.Forwarder and its receiver without HTTP. They send gob over any
// connection, such as a connection of crypto/tls. Copy this package as the start of your own
// transport.
package transport

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const maxMessage = 1 << 20 // bytes

type message struct {
	Manager core.Manager
	Batch   core.Batch
}

// Forwarder sends each batch on a separate connection.
type Forwarder func(ctx context.Context) (net.Conn, error)

var _ core.Forwarder = Forwarder(nil)

// Forward implements [core.Forwarder].
func (dial Forwarder) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	if batch.IsEmpty() {
		return nil
	}

	answer, err := dial.exchange(ctx, message{manager, batch})
	if ctx.Err() != nil {
		return fmt.Errorf("forward to %s: %w", manager, ctx.Err())
	}
	if err != nil { // It belongs to the path. No event is known to be delivered.
		return refusal{Text: fmt.Sprintf("forward to %s: %v", manager, err), Label: "connection"}
	}

	if whole, ok := answer[wholeBatch]; ok {
		return whole
	}
	if len(answer) == 0 {
		return nil // An empty EventErrors would be an error.
	}

	failed := core.EventErrors{}
	for i, r := range answer {
		failed[i] = r
	}
	return failed
}

// exchange sends a message and returns the answer. The end of ctx closes the connection, because a
// read or a write does not end with ctx.
func (dial Forwarder) exchange(ctx context.Context, m message) (answer map[int]refusal, err error) {
	conn, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	_ = gob.NewEncoder(conn).Encode(m) // After an error, no answer comes.
	err = gob.NewDecoder(conn).Decode(&answer)
	return answer, err
}

// Serve reads one batch from conn and answers with the result of handle. It closes conn. A control
// plane that ends TLS takes the sender from the certificate of conn, and asks a [core.Verifier].
func Serve(ctx context.Context, conn net.Conn, handle core.ForwarderFunc) error {
	defer conn.Close()

	var m message
	if err := gob.NewDecoder(io.LimitReader(conn, maxMessage)).Decode(&m); err != nil {
		return err
	}

	return gob.NewEncoder(conn).Encode(answerTo(handle(ctx, m.Manager, m.Batch)))
}

// wholeBatch is the index of an error that belongs to the manager, the sender or the path.
const wholeBatch = -1

func answerTo(err error) map[int]refusal {
	failed, ok := errors.AsType[core.EventErrors](err)
	if !ok && err != nil {
		failed = core.EventErrors{wholeBatch: err}
	}

	answer := map[int]refusal{}
	for i, err := range failed {
		answer[i] = refusal{err.Error(), string(core.ReasonOf(err)), core.IsPermanent(err), core.RetryAfter(err)}
	}
	return answer
}

// refusal carries the properties of an error that an outbox needs.
type refusal struct {
	Text, Label string
	Permanent   bool
	After       time.Duration
}

func (r refusal) Error() string             { return r.Text }
func (r refusal) Reason() string            { return r.Label }
func (r refusal) Retryable() bool           { return !r.Permanent }
func (r refusal) RetryAfter() time.Duration { return r.After }

// Is finds the errors of core, such as core.ErrForbidden, by their reasons.
func (r refusal) Is(target error) bool { return string(core.ReasonOf(target)) == r.Label }
