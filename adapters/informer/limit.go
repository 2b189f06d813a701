package informer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	// progressWait is the longest time for which a list may make no progress. It bounds the wait
	// for the first byte, between two reads of the body, and between two objects of a streaming
	// list.
	progressWait = time.Minute
	// listWait bounds a whole list. A cluster in which objects are created all the time could
	// otherwise keep an endless one alive.
	listWait = 15 * time.Minute
	// longestWatch is the end of a watch for which no time was asked.
	longestWatch = 15 * time.Minute
	// watchGrace is the time that an API server may end a watch too late.
	watchGrace = time.Minute
)

var (
	// errEndless is the error of a streaming watch (KEP-3157) without the bookmark that marks the
	// end of its list. An API server that does not know the parameter takes the request for an
	// ordinary watch.
	errEndless = errors.New("the API server does not end the first list of a streaming watch: " +
		"the objects are listed without streaming")
	errNoProgress = fmt.Errorf("no answer, or no further part of it, within %v", progressWait)
)

// limit ends one request that makes no progress. Its methods may be called concurrently.
type limit struct {
	// ctx is the context of the request.
	ctx    context.Context //nolint:containedctx // It lives as long as the request.
	cancel context.CancelCauseFunc
	began  time.Time

	mu    sync.Mutex
	timer *time.Timer
	// over says whether the timer ended the request.
	over bool
}

// newLimit returns the limit of a request that begins now. The caller must call endRequest.
func newLimit(ctx context.Context) *limit {
	l := &limit{began: time.Now()}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	l.timer = time.AfterFunc(progressWait, l.expire)

	return l
}

func (l *limit) expire() {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.cancel(errNoProgress)
}

// extendWait notes progress of a list.
func (l *limit) extendWait() { l.setTimer(min(progressWait, listWait-time.Since(l.began))) }

// watchFor bounds a watch by the time that was asked for, in seconds.
func (l *limit) watchFor(seconds *int64) {
	bound := longestWatch
	if seconds != nil && *seconds > 0 {
		bound = time.Duration(*seconds) * time.Second
	}

	l.setTimer(bound + watchGrace)
}

// setTimer ends the request after a wait, unless the limit has ended it already.
func (l *limit) setTimer(wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if !l.over {
		l.timer.Reset(max(wait, 0))
	}
}

func (l *limit) isOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// causeOf returns errNoProgress if the limit ended the request, and otherwise err.
func (l *limit) causeOf(err error) error {
	if l.isOver() {
		return errNoProgress
	}
	return err
}

// endRequest frees the limit. It ends the request.
func (l *limit) endRequest() {
	l.timer.Stop()
	l.cancel(nil)
}

// newReader returns a body of which each read is progress.
func (l *limit) newReader(body io.Reader) io.Reader { return progress{l, body} }

type progress struct {
	limit *limit
	body  io.Reader
}

func (p progress) Read(b []byte) (int, error) {
	n, err := p.body.Read(b)
	if n > 0 {
		p.limit.extendWait()
	}
	return n, err
}
