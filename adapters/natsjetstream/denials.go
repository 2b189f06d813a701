package natsjetstream

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// denials ends attempts that the NATS server denies. It does not answer a publish that is denied,
// but reports an error of the connection with the subject in its text.
type denials struct{ attempts sync.Map } // Its keys are *attempt.

type attempt struct {
	subject string
	end     context.CancelCauseFunc
}

func (d *denials) listen(conn *nats.Conn) {
	before := conn.ErrorHandler()
	conn.SetErrorHandler(func(conn *nats.Conn, sub *nats.Subscription, err error) {
		d.deny(err)
		if before != nil {
			before(conn, sub, err)
		}
	})
}

// watch returns a context that ends when the subject is denied. stop must be called.
func (d *denials) watch(ctx context.Context, subject string) (watched context.Context, stop func()) {
	watched, end := context.WithCancelCause(ctx)
	a := &attempt{strconv.Quote(subject), end}
	d.attempts.Store(a, nil)
	return watched, func() {
		d.attempts.Delete(a)
		end(nil)
	}
}

func (d *denials) deny(err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return
	}
	for key := range d.attempts.Range {
		if a, ok := key.(*attempt); ok && strings.Contains(err.Error(), a.subject) {
			a.end(err)
		}
	}
}
