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
type denials struct {
	mu       sync.Mutex
	attempts map[*attempt]struct{}
}

type attempt struct {
	subject string
	end     context.CancelCauseFunc
}

// listen adds itself to the error handler of the connection.
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
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.attempts == nil {
		d.attempts = map[*attempt]struct{}{}
	}
	d.attempts[a] = struct{}{}
	return watched, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.attempts, a)
		end(nil)
	}
}

func (d *denials) deny(err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for a := range d.attempts {
		if strings.Contains(err.Error(), a.subject) {
			a.end(err)
		}
	}
}
