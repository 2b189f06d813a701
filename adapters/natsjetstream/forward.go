package natsjetstream

import (
	"context"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// Forward implements [core.Forwarder]. It blocks until the operator has answered, or until
// AnswerWait of [ForwarderOptions] has passed after the stream stored the batch. If ctx ends or
// Timeout passes, Forward returns an error, although the batch may have been stored. While the
// operator does not answer, Forward drops a heartbeat if a message of the runtime waits in the
// stream.
func (f *Forwarder) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	if batch.IsEmpty() {
		return nil
	}

	manager, err := core.ParseManager(string(manager)) // It becomes part of a subject.
	if err != nil {
		return err
	}

	subject := Subject(manager, f.runtime)
	batch = contract.Claim(batch, f.runtime)
	encoded, err := contract.V3.Encode(&batch)
	if err != nil {
		return &publishError{Subject: subject, Err: err, reason: ReasonMaterial} // The fault is the claim.
	}

	encoded.Unsendable(func(err error) error {
		return &publishError{Subject: subject, Err: err, reason: ReasonUnsendable, permanent: true}
	})
	if encoded.Body == nil {
		return encoded.Failed
	}

	ctx, cancel := context.WithTimeout(ctx, f.opts.Timeout)
	defer cancel()

	m := &message{
		subject: subject, stream: streamName(manager), request: &encoded, events: len(batch.Events),
	}
	if len(batch.Events) == 0 && !batch.Heartbeat.Leaving {
		m.replaceable = !f.isAnswered(subject)
	}

	if err := f.exchangeMessage(ctx, m); err != nil {
		return encoded.Result(err)
	}

	f.results.Store(subject, m.id)
	return encoded.Result(nil)
}
