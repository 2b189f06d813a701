package listener

import (
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/internal/httpserver"
)

// size returns the bytes of the body that a request costs. A body of unknown size costs as much as
// the largest.
func (x *exchange) size() int64 {
	size := int64(x.version.MaxBody())
	if announced := x.request.ContentLength; announced >= 0 {
		size = min(size, announced)
	}
	return size
}

// tooFast refuses a request beyond the share of its account, and pauses its connection.
func (x *exchange) tooFast(f *intake.Failure) answer {
	x.pause(f.Pause)
	a := answerTo(x.version, f)
	a.Status = x.tooFastStatus()
	return a
}

// pause pauses the connection of a refused request, unless that is a gateway's.
func (x *exchange) pause(pause time.Duration) {
	if x.peers.ownsConnection {
		httpserver.PauseReads(x.request.Context(), spread(pause))
	}
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
