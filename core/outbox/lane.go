package outbox

import (
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

// shared is the state that all lanes of an outbox have in common. The lock mu guards totals and
// drains. New sets all other fields.
type shared struct {
	forwarder core.Forwarder
	opts      Options
	log       log
	callEnded chan struct{} // has a token after a call that ended while the outbox drains, for Start to check again.

	mu     sync.Mutex // guards the lanes, too.
	totals totals
	drains bool // Start waits until nothing is pending.
}

// lane contains the events of one manager, with its own pause, so that one manager delays no other.
// [Outbox.Accept] adds events to it, its dispatcher takes them, and the goroutines of its calls
// apply the answers. shared.mu guards all fields that change. A lane promotes the fields of shared
// (mu, opts, log, totals, drains), and the entries, wake and removeEntries of store.
type lane struct {
	*shared

	// Its identity and its life. Only New, the start of the dispatcher and an eviction change them.
	manager  core.Manager
	idPrefix string
	// Resends are due at whole steps from grid on. It is half a step before the lane began, so that
	// each event of a regular writer carries the resends of the events before.
	grid       time.Time
	configured bool
	dispatched bool
	closed     chan struct{} // closed when the lane is evicted.

	// Its events, and the fates of those that left.
	store

	counts   Counts
	newest   time.Time // when the last event was offered.
	sequence uint64    // of the newest event that was sent.

	// Its resyncs.
	owners   owners     // named by events, where resyncs are for owners.
	resynced resyncPace // the pace of delivered resyncs, per owner.
	replaced time.Time  // when the last resync that replaces refused events is due.

	// The time of the next call, and its size.
	pause     pause
	gather    gather
	size      size
	schedule  schedule // of heartbeats.
	inFlight  int      // calls of the forwarder.
	tookAlone bool     // the last call took a refused event that travels alone, so the next takes others.

	// Knowledge of the manager, from its answers.
	reached bool // it has taken a batch.
	unknown bool // the receiver did not know it, at least once.
	// receiverChecks is the finding of the last call. See settleTime for its use.
	receiverChecks bool

	pace *pacedlog.Pace // of lines about the lane.
}

func newLane(all *shared, manager core.Manager) *lane {
	return &lane{
		shared:   all,
		manager:  manager,
		idPrefix: all.opts.Epoch + "-" + string(manager) + "-",
		grid:     time.Now().Add(-all.opts.ResendEvery / 2),
		closed:   make(chan struct{}),
		store:    newStore(&all.totals),
		counts:   newCounts(),
		resynced: make(resyncPace),
		size:     newSize(all.opts.MaxBatch),
		pace:     pacedlog.NewPace(logEvery),
	}
}

// isUnproved reports whether nothing shows that the manager of a lane exists, and no event that
// waits can find out.
func (l *lane) isUnproved() bool {
	mayFindOut := !l.unknown && l.entries.len() > 0
	return !l.reached && !mayFindOut
}

// isIdle reports whether the lane has no events, and no resends that wait.
func (l *lane) isIdle() bool { return l.entries.len() == 0 }

// dropAll gives up all events and ends the heartbeats.
func (l *lane) dropAll(reason core.Reason) {
	if n := l.counts.Pending; n > 0 {
		l.counts.giveUpEvents(n, reason)
	}
	l.removeEntries()
	l.schedule.next = time.Time{}
}

// endWaits ends all waits after failures and refusals. [Outbox.Retry] calls it.
func (l *lane) endWaits(now time.Time) {
	l.pause.endWait(now)
	l.retryRefused(now)
}

// isConcurrent reports whether calls may overlap.
func (l *lane) isConcurrent() bool { return l.opts.InFlight > 1 }
