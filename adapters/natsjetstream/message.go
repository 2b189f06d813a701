package natsjetstream

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// message is a batch on its way to the stream. Only the call of Forward that made it uses it.
type message struct {
	subject, stream string
	// id is set by storeMessage. It stays the same while the result of an attempt is unknown.
	id string

	request *contract.Request
	// events is the number of events of the batch.
	events int
	// replaceable means that the batch is a heartbeat, another one follows, and the operator did
	// not answer the last message.
	replaceable bool
}

// exchangeMessage stores a message, and waits for its answer if the operator is likely to send one.
func (f *Forwarder) exchangeMessage(ctx context.Context, m *message) error {
	if err := ctx.Err(); err != nil {
		return classify(m.subject, err)
	}
	if !f.conn.IsConnected() {
		return disconnected(m.subject, f.conn.LastError())
	}
	if f.opts.AnswerWait < 0 {
		_, err := f.storeMessage(ctx, m, "")
		return err
	}

	// The answer is either taken in time, or declined.
	answers := make(chan *nats.Msg)
	over := make(chan struct{})
	came := new(atomic.Bool)
	defer close(over)

	subscription, err := f.conn.Subscribe(f.conn.NewInbox(), func(msg *nats.Msg) {
		came.Store(true)
		select {
		case answers <- msg:
		case <-over:
			decline(msg)
		}
	})
	if err != nil {
		return classify(m.subject, err)
	}

	willAnswer, err := f.storeMessage(ctx, m, subscription.Subject)
	if err != nil || !willAnswer {
		_ = subscription.Unsubscribe() // It fails when the connection is gone.
		return err
	}

	isAnswered, err := f.awaitAnswer(ctx, m, answers)
	if !isAnswered {
		_ = subscription.AutoUnsubscribe(1) // It fails when the connection is gone.
		f.setLastAnswer(m.subject, lastAnswer{subscription, came})
		return nil
	}

	_ = subscription.Unsubscribe() // It fails when the connection is gone.
	return err
}

// decline answers a refusal that came too late as a server without a subscriber does. The event
// stays in the stream. Without an answer, the operator would take the runtime for one that confirms
// nothing.
func decline(msg *nats.Msg) {
	if msg.Reply != "" {
		_ = msg.RespondMsg(&nats.Msg{Header: nats.Header{"Status": {"503"}}}) // It fails when the connection is gone.
	}
}

// lastAnswer is the answer of the operator to the last message on a subject. Its zero value came in
// time. Another one is late, and maybe still to come.
type lastAnswer struct {
	subscription *nats.Subscription
	came         *atomic.Bool
}

// setLastAnswer replaces the last answer on a subject, and ends the wait for the one before.
func (f *Forwarder) setLastAnswer(subject string, last lastAnswer) {
	former, _ := f.last.Swap(subject, last)
	if former, ok := former.(lastAnswer); ok {
		_ = former.subscription.Unsubscribe() // It fails without a wait, or when the connection is gone.
	}
}

// isAnswered reports whether the operator answered the last message on a subject, if late. Until
// then, the operator counts as away.
func (f *Forwarder) isAnswered(subject string) bool {
	known, _ := f.last.Load(subject)
	last, ok := known.(lastAnswer)
	if !ok {
		return false
	}
	return last.subscription == nil || last.came.Load()
}

// isOccupied reports whether the stream refused a message because another one has its subject.
// Replicated streams of newer servers have a code of their own.
func isOccupied(err error) bool {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return false
	}

	return api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant
}

// storeMessage stores a message, and reports whether the operator will answer it. Nothing answers a
// message that an earlier attempt has stored. While the operator is away, a heartbeat is stored
// only if no other message of the runtime waits in the stream, which heartbeats would fill.
func (f *Forwarder) storeMessage(ctx context.Context, m *message, answers string) (answered bool, err error) {
	ctx, stop := f.watchDenials(ctx, m.subject)
	defer stop()

	m.id = f.messageID(m)
	msg := nats.NewMsg(m.subject)
	msg.Data = m.request.Body

	if answers != "" {
		msg.Header.Set(headerAnswer, answers)
	}

	opts := []jetstream.PublishOpt{
		jetstream.WithMsgID(m.id), jetstream.WithExpectStream(m.stream), jetstream.WithRetryAttempts(0),
	}
	if m.replaceable {
		opts = append(opts, jetstream.WithExpectLastSequencePerSubject(0))
	}

	ack, err := f.stream.PublishMsg(ctx, msg, opts...)
	cause := context.Cause(ctx)

	switch {
	case err == nil:
		return !ack.Duplicate, nil
	case isOccupied(err):
		return false, nil
	case cause != nil:
		return false, classify(m.subject, cause)
	default:
		return false, classify(m.subject, err)
	}
}

// messageID returns the ID of a message. While the result of a message is unknown, another attempt
// has the same ID, so that the stream stores it once. After the result of any message on its
// subject there are other IDs, because the stream would ignore a repeated one.
//
// The IDs of a stream are shared by all runtimes. They cannot be guessed, because a runtime that
// knew the IDs of another runtime could make the stream ignore its messages.
func (f *Forwarder) messageID(m *message) string {
	last, _ := f.results.Load(m.subject)
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%s %v %s", f.secret, last, m.request.Body)))
}

// awaitAnswer returns false when no answer comes in time: the stream has the message.
func (f *Forwarder) awaitAnswer(ctx context.Context, m *message, answers <-chan *nats.Msg) (answered bool, err error) {
	late := time.NewTimer(f.opts.AnswerWait)
	defer late.Stop()

	select {
	case <-ctx.Done():
		return true, classify(m.subject, ctx.Err())
	case <-late.C:
		return false, nil
	case msg := <-answers:
		f.setLastAnswer(m.subject, lastAnswer{})
		answer := readAnswer(msg, m.request.Elements())
		if answer.Status == contract.V3.Status() {
			return true, nil
		}
		return true, f.takeBack(m, msg, &answer)
	}
}

// takeBack confirms a refusal, so that the operator removes the message from the stream.
func (f *Forwarder) takeBack(m *message, msg *nats.Msg, answer *contract.Answer) error {
	f.results.Store(m.subject, m.id) // Before the confirmation: the next attempt must be stored.
	_ = msg.Respond(nil)             // Without it, the stream delivers the events, too.

	if len(answer.Failed) == 0 {
		return refused(m.subject, answer.Refusal, f.opts.RefusedRetryAfter)
	}

	failed := make(core.EventErrors, len(answer.Failed))
	for element, r := range answer.Failed {
		failed[m.request.Index(element, m.events)] = refused(m.subject, r, f.opts.RefusedRetryAfter)
	}

	return failed
}

const (
	// headerAnswer of a batch is the subject on which its forwarder waits for the answer.
	headerAnswer = "Watch-Answer"
	// headerStatus and headerRetryAfter of an answer are the same as for HTTP in contract v3. The
	// body is also the body of contract v3.
	headerStatus     = "Watch-Status"
	headerRetryAfter = "Watch-Retry-After"
)

func answerTo(subject string, err error) *nats.Msg {
	answer := contract.V3.AnswerTo(err)
	msg := nats.NewMsg(subject)
	msg.Header.Set(headerStatus, strconv.Itoa(answer.Status))

	if answer.RetryAfter > 0 {
		msg.Header.Set(headerRetryAfter, strconv.FormatInt(contract.Seconds(answer.RetryAfter), 10))
	}
	if err != nil {
		msg.Data, _ = answer.Body() // Strings and numbers always have a JSON form.
	}

	return msg
}

func readAnswer(msg *nats.Msg, elements int) contract.Answer {
	status, _ := strconv.Atoi(msg.Header.Get(headerStatus))
	answer := contract.DecodeAnswer(status, msg.Data, elements)

	seconds, err := strconv.ParseUint(msg.Header.Get(headerRetryAfter), 10, 31)
	if err != nil {
		return answer // Without a wait.
	}

	answer.RetryAfter = min(time.Duration(seconds)*time.Second, maxRetryAfter)
	return answer
}

const maxRetryAfter = 5 * time.Minute
