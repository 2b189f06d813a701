package listener

import (
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/httpserver"
)

// account returns the account that the request is charged to.
func (x *exchange) account() account {
	if x.peer.ID == "" {
		return account{name: httpserver.Origin(x.request.RemoteAddr), stranger: true}
	}
	return account{name: string(x.peer.ID)}
}

// costUnit is the number of bytes of a body that cost one token.
const costUnit = 16 << 10

// cost returns the tokens for the request with its first event. A body of unknown size costs as
// much as the largest.
func (x *exchange) cost() float64 {
	size := int64(x.version.MaxBody())
	if announced := x.request.ContentLength; announced >= 0 {
		size = min(size, announced)
	}
	return 1 + float64(size)/costUnit
}

// tooFast refuses a request beyond the share of its account, and pauses its connection. The pause
// ends before the wait that the sender is asked for.
func (x *exchange) tooFast(wait time.Duration) answer {
	pause := x.pause()
	return answer{
		status: x.tooFastStatus(), reason: contract.ReasonTooFast, retryAfter: max(wait, pause, time.Second),
	}
}

// pause pauses the connection of a refused request, unless that is a gateway's, and returns the
// pause of the account.
func (x *exchange) pause() time.Duration {
	pause := x.shares.pause(x.account(), x.opts.Now())
	if x.ownsConnection() {
		httpserver.PauseReads(x.request.Context(), spread(pause))
	}
	return pause
}

// shortestPause bounds the cost of a single connection: an answer costs processor time, and a flood
// comes as fast as it is answered.
const shortestPause = 500 * time.Millisecond

// spread adds at random to a pause, so that connections that were paused together do not come back
// together.
func spread(pause time.Duration) time.Duration {
	return max(pause, shortestPause+rand.N(shortestPause)) //nolint:gosec // Jitter is no secret.
}

// tooFastStatus returns 503 on contracts v1 and v2: their deployed agents give up an event on 429.
func (x *exchange) tooFastStatus() int {
	if x.version != "" && !x.version.Numbered() {
		return http.StatusServiceUnavailable
	}
	return http.StatusTooManyRequests
}
