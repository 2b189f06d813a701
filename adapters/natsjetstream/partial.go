package natsjetstream

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// messageKey also contains the time, because the numbers of a stream that is created again begin
// again.
type messageKey struct {
	stream   string
	sequence uint64
	stored   int64
}

// partial remembers the failed events of messages that stay with their streams. Without it, one
// event that fails would have the others of its message handled again at each attempt.
type partial struct {
	mu     sync.Mutex
	failed map[messageKey][]int
}

// maxPartial bounds the messages that are remembered. All events of a forgotten one are handled
// again.
const maxPartial = 1 << 10

// takenBefore returns whether an event of a message was handled in an earlier attempt, by its
// index.
func (p *partial) takenBefore(message messageKey) func(index int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	failed, known := p.failed[message]
	return func(index int) bool { return known && !slices.Contains(failed, index) }
}

// noteError remembers the failed events of a message that stays.
func (p *partial) noteError(message messageKey, err error) {
	some, ok := errors.AsType[core.EventErrors](err)
	if !ok || message == (messageKey{}) {
		return
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	if p.failed == nil || len(p.failed) >= maxPartial {
		p.failed = map[messageKey][]int{}
	}

	p.failed[message] = slices.Collect(maps.Keys(some))
}
