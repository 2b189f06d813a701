package natsjetstream

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

const (
	// answerTimeout bounds the wait for the confirmation of a refusal.
	answerTimeout = time.Second
	// unawaited is the age of a message for which no forwarder waits any more, unless its
	// AnswerWait is longer than by default.
	unawaited = 3 * time.Second
	// minDelay and maxDelay bound the wait of a message that stays with the stream.
	minDelay = time.Second
	maxDelay = 30 * time.Second
	// staleHeartbeat is the age at which a heartbeat proves nothing any more.
	staleHeartbeat = 30 * time.Second
)

// job is one message of the stream until its fate is decided. Only the goroutine that handles the
// message uses it.
type job struct {
	msg      jetstream.Msg
	began    time.Time
	age      time.Duration
	attempts uint64
	// peer is the sender, as the NATS server knows it.
	peer core.Peer
	// key is the key of the message among the messages of all managers.
	key messageKey
}

func newJob(msg jetstream.Msg, clock *clock) *job {
	j := &job{msg: msg, began: time.Now(), attempts: 1}

	info, err := msg.Metadata()
	if err != nil {
		return j // No message of a stream: its age and its attempts are unknown.
	}

	j.age = clock.ageOf(info.Timestamp)
	j.attempts = info.NumDelivered
	j.key = messageKey{info.Stream, info.Sequence.Stream, info.Timestamp.UnixNano()}
	return j
}

// processMessage admits, decodes and receives a message, and decides its fate.
func (c *Consumer) processMessage(ctx context.Context, runtime core.RuntimeID, manager core.Manager, j *job) {
	if j.attempts > 1 {
		c.opts.Hooks.Redelivered(hook.Redelivery{Manager: manager})
	}

	j.peer = c.opts.Peer(runtime)
	if err := c.intake.Admit(j.peer); intake.IsRevoked(err) {
		c.refuseRevoked(ctx, runtime, manager, j, err)
		return
	}

	account := intake.Account{Name: string(runtime)}
	if tooFast := c.intake.Enter(account, int64(sizeOf(j.msg))); tooFast != nil {
		c.concludeMessage(runtime, manager, j, resultOf(tooFast), c.handBack(ctx, runtime, j, tooFast))
		return
	}

	defer c.intake.Leave(account)

	batch, err := contract.V3.Decode(j.msg.Data())
	if err != nil {
		c.handBack(ctx, runtime, j, err)
		c.terminateMessage(j, manager, reasons.Malformed, err)
		return
	}

	if j.age > staleHeartbeat {
		batch.Heartbeat = nil
	}

	c.receiveFrom(ctx, runtime, manager, j, batch)
}

// refuseRevoked answers the forwarder of a revoked runtime with the reason, and removes the message
// from the stream, because a thief may have sent it. The fleet misses the number of the message.
func (c *Consumer) refuseRevoked(
	ctx context.Context, runtime core.RuntimeID, manager core.Manager, j *job, refusal error,
) {
	if c.handBack(ctx, runtime, j, refusal) {
		c.reportConclusion(j, manager, hook.FateHandedBack, core.ReasonOf(refusal), j.msg.Ack())
		return
	}
	c.terminateMessage(j, manager, core.ReasonOf(refusal), refusal)
}

// receiveFrom hands a batch to the intake. A replica that stops leaves it to another one.
func (c *Consumer) receiveFrom(
	ctx context.Context, runtime core.RuntimeID, manager core.Manager, j *job, batch core.Batch,
) {
	handed := false
	r := result{}
	if !batch.IsEmpty() {
		r = c.receive(ctx, &intake.Request{
			Peer: j.peer, Manager: manager, Batch: batch, Contract: contract.V3, Wait: true,
			Return: func(err error) bool {
				handed = c.handBack(ctx, runtime, j, err)
				return handed
			},
			Taken: c.partial.takenBefore(j.key),
		})

		c.partial.noteError(j.key, r.err)
	}

	if r.err != nil && ctx.Err() != nil {
		r.fault = intake.FaultOfReplica
	}

	c.concludeMessage(runtime, manager, j, r, handed)
}

// concludeMessage acknowledges a message, or leaves it to the stream, by the result of its batch.
// handed means that its forwarder has taken it back.
func (c *Consumer) concludeMessage(runtime core.RuntimeID, manager core.Manager, j *job, r result, handed bool) {
	var reason core.Reason
	if r.err != nil {
		reason = core.ReasonOf(errorsOf(r.err)[0])
	}

	switch {
	case r.err == nil:
		c.reportConclusion(j, manager, hook.FateEnqueued, "", j.msg.Ack())
		if subject, ok := answerSubject(runtime, j.msg); ok {
			_ = c.conn.PublishMsg(answerTo(subject, nil)) // Without it, the forwarder waits a little longer.
		}
	case handed:
		c.reportConclusion(j, manager, hook.FateHandedBack, reason, j.msg.Ack())
	case r.fault == intake.FaultOfReplica && c.intake.Ready(manager) != nil:
		c.reportConclusion(j, manager, hook.FateDelayed, reason, j.msg.Nak())
	case r.fault == intake.FaultOfShare:
		c.deferMessage(runtime, j, manager)
	case j.age > c.opts.GiveUpAfter && isFinal(r.err):
		c.terminateMessage(j, manager, reason, r.err)
	default:
		c.delayMessage(j, manager, reason, max(longestWait(r.err), backoff(j.attempts)))
	}
}

// handBack offers a refusal to the forwarder that waits for it, and reports whether it confirmed.
// Another replica handles an event that this one cannot handle.
func (c *Consumer) handBack(ctx context.Context, runtime core.RuntimeID, j *job, refusal error) bool {
	subject, ok := answerSubject(runtime, j.msg)
	if !ok || ctx.Err() != nil {
		return false
	}

	whole, isWhole := errors.AsType[*intake.Failure](refusal)
	if isWhole && whole.Fault == intake.FaultOfReplica {
		return false
	}
	if j.age+time.Since(j.began) > unawaited { // The refusal shows the forwarder that the operator is back.
		_ = c.conn.PublishMsg(answerTo(subject, refusal))
		return false
	}

	return c.returns.offerOnce(runtime, func() error {
		return c.offerRefusal(ctx, runtime, answerTo(subject, refusal))
	})
}

// offerRefusal sends a refusal, and waits for its confirmation on a subject that the runtime alone
// may use. The server answers immediately if nothing waits for the refusal.
func (c *Consumer) offerRefusal(ctx context.Context, runtime core.RuntimeID, refusal *nats.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()

	inbox := cmp.Or(c.conn.Opts.InboxPrefix, InboxPrefix(reservedRuntime))
	refusal.Reply = confirmations(inbox, runtime) + "." + rand.Text()
	confirmed := make(chan *nats.Msg, 1)
	subscription, err := c.conn.ChanSubscribe(refusal.Reply, confirmed)
	if err != nil {
		return err
	}
	defer subscription.Unsubscribe() //nolint:errcheck // It fails when the connection is gone.

	// The server sends one confirmation. nats.go would report further ones on stderr.
	if err := cmp.Or(subscription.AutoUnsubscribe(1), c.conn.PublishMsg(refusal)); err != nil {
		return err
	}

	select {
	case answer := <-confirmed:
		if answer.Header.Get("Status") != "" {
			return nats.ErrNoResponders
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answerSubject returns the subject on which the forwarder of a message waits. It must be of the
// runtime itself: the operator may publish to more subjects than a runtime. It must be valid: a
// server closes a connection for good that publishes to another one.
func answerSubject(runtime core.RuntimeID, msg jetstream.Msg) (subject string, ok bool) {
	subject = msg.Headers().Get(headerAnswer)
	name, ok := strings.CutPrefix(subject, InboxPrefix(runtime)+".")
	return subject, ok && len(subject) <= maxAnswerSubject && isLiteral(name)
}

// maxAnswerSubject bounds the subject of an answer, in bytes. A NATS server accepts lines of 4 KiB.
const maxAnswerSubject = 1024

func isLiteral(name string) bool {
	return !strings.ContainsAny(name, "*> \t\r\n") && !slices.Contains(strings.Split(name, "."), "")
}

// terminateMessage removes a message with events that are lost.
func (c *Consumer) terminateMessage(j *job, manager core.Manager, reason core.Reason, err error) {
	c.paced.Warn("message terminated", slog.String("manager", string(manager)),
		slog.String("subject", j.msg.Subject()), slog.String("reason", string(reason)), slog.Any("error", err))
	c.reportConclusion(j, manager, hook.FateTerminated, reason, j.msg.Term())
}

// delayMessage leaves a message to the stream for a while.
func (c *Consumer) delayMessage(j *job, manager core.Manager, reason core.Reason, wait time.Duration) {
	c.reportConclusion(j, manager, hook.FateDelayed, reason, j.msg.NakWithDelay(wait))
}

// deferMessage leaves a message beyond the share of its runtime to the stream, until there is room.
func (c *Consumer) deferMessage(runtime core.RuntimeID, j *job, manager core.Manager) {
	events := max(bytes.Count(j.msg.Data(), []byte(`"specversion"`)), 1)
	wait := c.intake.Defer(intake.Account{Name: string(runtime)}, events, sizeOf(j.msg))
	c.delayMessage(j, manager, reasons.TooFast, wait)
}

// sizeOf returns the bytes of a message that its runtime has chosen. Headers count: almost all of a
// message may be headers.
func sizeOf(msg jetstream.Msg) int {
	size := len(msg.Data())
	for name, values := range msg.Headers() {
		for _, value := range values {
			size += len(name) + len(value)
		}
	}
	return size
}

// reportConclusion reports the fate of a message. err is the error of its acknowledgement: without
// an acknowledgement, the stream delivers the message again.
func (c *Consumer) reportConclusion(j *job, manager core.Manager, fate hook.Fate, reason core.Reason, err error) {
	if err != nil {
		fate = hook.FateDelayed
		reason = ReasonConnection
	}

	c.opts.Hooks.Concluded(hook.Conclusion{
		Manager: manager, Fate: fate, Reason: reason, Took: time.Since(j.began),
	})
}

func errorsOf(err error) []error {
	if some, ok := errors.AsType[core.EventErrors](err); ok {
		return slices.Collect(maps.Values(some))
	}
	return []error{err}
}

func isFinal(err error) bool {
	return !slices.ContainsFunc(errorsOf(err), func(err error) bool {
		return !errors.Is(err, core.ErrForbidden) && !errors.Is(err, core.ErrUnauthenticated) && !core.IsPermanent(err)
	})
}

func longestWait(err error) (longest time.Duration) {
	for _, err := range errorsOf(err) {
		longest = max(longest, min(core.RetryAfter(err), maxRetryAfter))
	}
	return longest
}

func backoff(attempts uint64) time.Duration {
	return min(minDelay<<min(max(attempts, 1)-1, maxDoublings), maxDelay)
}

const maxDoublings = 5
