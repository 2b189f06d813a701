package natsjetstream

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// ForwarderOptions are the optional settings of a [Forwarder]. The zero value is the documented
// default.
type ForwarderOptions struct {
	// Timeout bounds one call of Forward. The context of the caller may end it earlier. Default: 10
	// s.
	Timeout time.Duration
	// AnswerWait is how long Forward waits for the answer of the operator after the stream has
	// stored the batch. Without an answer, Forward returns nil. Default: 2 s. Negative: Forward
	// does not wait, and the operator cannot hand refused events back.
	AnswerWait time.Duration
	// RefusedRetryAfter is how long the forwarder waits if the operator refuses the sender without
	// requesting a wait, because a rotation of certificates may be in progress. Default: 30 s.
	// Negative: none.
	RefusedRetryAfter time.Duration
}

func (o ForwarderOptions) withDefaults() ForwarderOptions {
	return option.WithDefaults(o, ForwarderOptions{
		Timeout: 10 * time.Second, AnswerWait: 2 * time.Second, RefusedRetryAfter: 30 * time.Second,
	})
}

// Forwarder is a [core.Forwarder] that publishes each batch to the stream of its manager. Create
// one Forwarder for each connection with [NewForwarder]. It is safe for concurrent use. Only the
// connection starts goroutines: one for each expected answer.
//
// Errors are classified as with HTTP. For a manager without a stream, the error wraps
// [core.ErrUnknownManager], and for a full stream [core.ErrNotReady]. For a subject that the
// runtime may not use, the error wraps [core.ErrForbidden].
type Forwarder struct {
	conn    *nats.Conn
	stream  jetstream.JetStream
	runtime core.RuntimeID
	opts    ForwarderOptions
	// attempts contains a function for each attempt, which ends it with the error that denies its
	// subject.
	attempts sync.Map
	// secret is in the IDs of messages, and so is the ID of the last message with a result, which
	// results has for each subject.
	secret  string
	results sync.Map
	// last contains the [lastAnswer] of each subject.
	last sync.Map
}

var _ core.Forwarder = (*Forwarder)(nil)

var (
	errNoConnection = errors.New("natsjetstream: connection is nil")
	errInbox        = errors.New(
		"natsjetstream: the connection has another inbox prefix: want the prefix of ConnectOptions",
	)
)

// NewForwarder returns a forwarder for a runtime, which the NATS server must identify by its
// certificate. It does not use the network. The connection must have [ConnectOptions], and the
// caller closes it. The error handler of the connection is still called.
func NewForwarder(conn *nats.Conn, runtime core.RuntimeID, opts ForwarderOptions) (*Forwarder, error) {
	invalid := option.RuntimeName(string(runtime))
	switch {
	case conn == nil:
		return nil, errNoConnection
	case invalid != nil:
		return nil, fmt.Errorf("natsjetstream: %w", invalid)
	case runtime == reservedRuntime:
		return nil, errReserved
	case conn.Opts.InboxPrefix != InboxPrefix(runtime):
		return nil, fmt.Errorf("%w: %q", errInbox, InboxPrefix(runtime))
	}

	if err := option.NotNegative("ForwarderOptions.Timeout", opts.Timeout); err != nil {
		return nil, fmt.Errorf("natsjetstream: %w", err)
	}

	stream, err := jetstream.New(conn)
	if err != nil {
		return nil, fmt.Errorf("natsjetstream: %w", err)
	}

	f := &Forwarder{conn: conn, stream: stream, runtime: runtime, opts: opts.withDefaults(), secret: rand.Text()}
	f.endDenied()
	return f, nil
}

// endDenied ends attempts that the NATS server denies. It does not answer a publish that is denied,
// but reports an error of the connection with the subject in its text.
func (f *Forwarder) endDenied() {
	before := f.conn.ErrorHandler()
	f.conn.SetErrorHandler(func(conn *nats.Conn, sub *nats.Subscription, err error) {
		for _, attempt := range f.attempts.Range {
			if deny, ok := attempt.(func(error)); ok && errors.Is(err, nats.ErrPermissionViolation) {
				deny(err)
			}
		}

		if before != nil {
			before(conn, sub, err)
		}
	})
}

// watchDenials returns a context that ends when the NATS server denies the subject. The caller must
// call stop.
func (f *Forwarder) watchDenials(ctx context.Context, subject string) (watched context.Context, stop func()) {
	watched, end := context.WithCancelCause(ctx)
	deny := func(err error) {
		if strings.Contains(err.Error(), strconv.Quote(subject)) {
			end(err)
		}
	}

	f.attempts.Store(&deny, deny)
	return watched, func() {
		f.attempts.Delete(&deny)
		end(nil)
	}
}
