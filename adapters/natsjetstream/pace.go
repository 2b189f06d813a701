package natsjetstream

import (
	"bytes"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
)

// pace spreads the returns of messages beyond the share of their runtime. Each comes back when the
// share has room for it and for those before it. A message that comes too early is carried in vain,
// and delays the messages of others. It is safe for concurrent use.
type pace struct {
	// token is the time in which a runtime earns one token of its share.
	token time.Duration

	mu sync.Mutex
	// next has the time at which the share of a runtime has room for a further message.
	next map[core.RuntimeID]time.Time
}

const (
	// slack is the part by which a token takes longer here, so that no message comes too early.
	slack = 0.1
	// maxPaced bounds the runtimes that are remembered.
	maxPaced = 16 << 10
)

func newPace(rate float64) *pace {
	return &pace{token: time.Duration((1 + slack) / rate * float64(time.Second)), next: map[core.RuntimeID]time.Time{}}
}

// after returns the wait of a refused message, which is at least that of the refusal. It is at most
// maxRetryAfter.
func (p *pace) after(runtime core.RuntimeID, data []byte, refusal time.Duration, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.next) >= maxPaced {
		clear(p.next)
	}
	wait := max(p.next[runtime].Sub(now), refusal, minDelay)
	p.next[runtime] = now.Add(min(wait+time.Duration(cost(data))*p.token, maxRetryAfter))
	return min(wait, maxRetryAfter)
}

// cost returns about the number of tokens that a batch costs: one for each event and each 16 KiB.
func cost(data []byte) int {
	return max(bytes.Count(data, []byte(`"specversion"`)), 1) + len(data)/defaults.BytesPerToken
}
