package outbox

import (
	"cmp"
	"container/heap"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

// shared is the part of an outbox that all lanes use.
type shared struct {
	forwarder core.Forwarder
	opts      Options
	log       log
	emptied   chan struct{} // holds a token when nothing may be pending any more

	mu      sync.Mutex // guards the lanes, too
	allKeys int        // over all lanes, resyncs left out, resends included
	// allBytes is about the memory of the entries of all lanes.
	allBytes int
}

// lane has the events of one manager, with its own pause, so that one manager delays no other.
// shared.mu guards all fields that change.
type lane struct {
	*shared

	manager    core.Manager
	configured bool
	dispatched bool
	resynced   map[types.NamespacedName]time.Time // when the last delivered resync was sent, by owner.
	owners     owners                             // named by events, where resyncs are for owners.
	counts     Counts
	newest     time.Time // when the last event was offered.

	entries index
	keys    int   // entries that are no resyncs.
	bytes   int   // about the memory of the entries.
	ready   queue // to be sent when due.
	refused queue // refused for themselves: sent again when due, a few at a time.
	resends queue // delivered, and sent once more when due: no events until then.

	size   size
	gather gather
	// checked means that the last answer names a check of the receiver after Settle or later.
	checked bool
	grid    time.Time // when the lane began: resends are due at whole steps from then on.

	tookAlone bool // the last call took a refused event that travels alone.

	inFlight int       // calls of the forwarder.
	probing  bool      // an attempt after a failure is under way.
	failures int       // of whole calls, in a row.
	failing  time.Time // when the first of them ended.
	paused   time.Time
	resumes  time.Time
	retried  time.Time // last call of Retry.
	stoodIn  time.Time // when the last resync that stands in for refused events is due.
	reached  bool      // has taken a batch.
	unknown  bool      // was unknown to the receiver at least once.

	order    uint64 // of the newest entry.
	sequence uint64 // of the newest event that was sent.
	idPrefix string
	pulse    pulse
	pace     *pacedlog.Pace
	noted    bool // there was a line about the present pause.

	wake   chan struct{} // holds a token when there may be something to do.
	closed chan struct{} // closed when the lane is evicted.
}

func newLane(all *shared, manager core.Manager) *lane {
	return &lane{
		shared:   all,
		manager:  manager,
		idPrefix: all.opts.Epoch + "-" + string(manager) + "-",
		entries:  newIndex(),
		counts:   newCounts(),
		resynced: make(map[types.NamespacedName]time.Time),
		grid:     time.Now(),
		pace:     pacedlog.NewPace(logEvery),
		size:     newSize(all.opts.MaxBatch),
		wake:     make(chan struct{}, 1),
		closed:   make(chan struct{}),
	}
}

func (l *lane) clear(reason core.Reason) {
	if n := l.counts.Pending; n > 0 {
		l.counts.giveUp(n, reason)
	}
	l.entries.clear()
	l.ready, l.refused, l.resends, l.keys, l.bytes = nil, nil, nil, 0, 0
	l.pulse.next = time.Time{}
}

func (l *lane) put(event core.WatchEvent, now, due time.Time) (outcome core.Outcome, added bool) {
	e := l.entries.find(event.Key())
	if e != nil {
		event.Watched, event.WatchedGVK, event.Owner = e.Watched, e.WatchedGVK, e.Owner // The texts are kept once.
	}

	outcome = core.Accepted
	switch {
	case e == nil:
		l.add(&entry{Numbered: core.Numbered{WatchEvent: event}, accepted: now, newest: now, due: due})
		return core.Accepted, true
	case e.queue == &l.resends:
		e.WatchEvent, e.newest = event, now
		l.resend(e, now, due)
	case e.next == nil:
		e.next = &waiting{event: event, accepted: now, newest: now, due: due}
	default:
		e.next.event, e.next.newest, e.next.due = event, now, due
		outcome = core.Coalesced
	}
	l.noteSize(e, e.size())
	return outcome, false
}

func (l *lane) add(e *entry) {
	l.order++
	e.order = l.order
	l.entries.add(e)
	l.noteSize(e, e.size())
	l.enqueue(e)
}

func (l *lane) enqueue(e *entry) {
	q := &l.ready
	if e.refusals > 0 {
		q = &l.refused
	}
	l.await(q, e)
}

func (l *lane) await(q *queue, e *entry) {
	q.add(e)
	if e.position == 0 {
		signal(l.wake)
	}
}

// resend makes an entry an event again, with a new number: it is due after all that was sent.
func (l *lane) resend(e *entry, now, due time.Time) {
	l.resends.remove(e)
	l.order++
	e.accepted, e.due, e.order = now, due, l.order
	l.enqueue(e)
}

// scheduleResend makes a delivered entry wait for its resend, which will be an event of its own.
func (l *lane) scheduleResend(e *entry, due time.Time) {
	*e = entry{
		Numbered: core.Numbered{WatchEvent: e.WatchEvent}, newest: e.newest, again: e.again, due: due, bytes: e.bytes,
		collided: e.collided,
	}
	l.noteSize(e, e.size())
	l.await(&l.resends, e)
}

// sendAfter makes sure that a resync is sent after now, at a time at the latest if it rests, and
// reports whether that changed anything. It then stands for events that were accepted until newest.
func (l *lane) sendAfter(e *entry, newest, at time.Time) (changed bool) {
	e.newest = latest(e.newest, newest)
	if e.next != nil {
		e.next.newest = latest(e.next.newest, newest)
	}
	switch {
	case e.queue == &l.resends && !e.due.Before(at):
		l.resends.remove(e)
		e.due = at
		l.await(&l.resends, e)
	case e.next == nil && (e.queue == nil || e.ID != ""): // It may have been sent too early.
		e.again = latest(e.again, at)
	default:
		return false
	}
	return true
}

func (l *lane) lastWaiting() *entry { return cmp.Or(l.refused.lastChange(), l.ready.lastChange()) }

// maxRefused bounds the events of a batch that were refused before, so that they do not hold up
// others.
const maxRefused = 50

// take removes up to limit events that are due, and reports whether a heartbeat is due, too.
// Numbers that did not arrive are among the events, as those are the first. When there is nothing
// it returns how long to wait, negative for as long as nothing else happens.
func (l *lane) take(limit int, now time.Time) (batch []*entry, beat bool, wait time.Duration) {
	if wait := l.pauseLeft(now); wait != 0 {
		return nil, false, wait
	}
	limit = min(limit, l.size.limit)
	if wait := l.gatherLeft(limit, now); wait > 0 {
		return nil, false, wait
	}

	beat = l.pulse.due(now)
	if !beat || !l.travelsAlone() {
		batch = l.takeEvents(limit, now)
		beat = beat && !isAlone(batch) && l.mayFollow(len(batch))
	}
	if len(batch) == 0 && !beat {
		return nil, false, l.untilDue(now)
	}
	l.inFlight++
	l.probing = l.failures > 0
	l.noteTaken(batch, now)
	return batch, beat, 0
}

// travelsAlone reports whether a heartbeat that is due travels before the events, because batches
// are small. It names numbers that have arrived.
func (l *lane) travelsAlone() bool {
	switch {
	case !l.size.isNarrow():
		return false
	case l.size.large:
		return l.arrived() >= l.pulse.named && !l.mayBeSeen()
	default: // Numbers that wait may have been seen, if their answer was lost.
		return l.arrived() == l.sequence && l.sequence > 0
	}
}

// mayFollow reports whether a heartbeat may follow so many events that were taken. A small batch
// may leave numbers behind that a heartbeat names, or have no room.
func (l *lane) mayFollow(events int) bool {
	return !l.size.isNarrow() || l.arrived() == l.sequence && events < l.size.limit
}

// mayBeSeen reports whether the receiver may have seen a number that waits, because its answer was
// lost. A heartbeat that names a lower number would then look like a restart.
func (l *lane) mayBeSeen() bool {
	for _, e := range l.ready {
		if e.seen {
			return true
		}
	}
	return false
}

// arrived returns the highest number of the sequence that the receiver has seen, as far as this end
// knows. Numbers above it wait to be sent again.
func (l *lane) arrived() uint64 {
	arrived := l.sequence
	for _, e := range l.ready {
		if e.Sequence > 0 {
			arrived = min(arrived, e.Sequence-1)
		}
	}
	return arrived
}

// pauseLeft returns how long to wait after a failure. It is negative until the attempt under way
// has ended, as one attempt at a time finds out whether the manager is back.
func (l *lane) pauseLeft(now time.Time) time.Duration {
	switch {
	case l.failures == 0:
		return 0
	case l.probing:
		return -1
	default:
		return max(l.resumes.Sub(now), 0)
	}
}

// takeEvents takes a refused event that travels alone at every other call only, so that neither it
// nor the others are held up.
func (l *lane) takeEvents(limit int, now time.Time) []*entry {
	l.tookAlone = !l.tookAlone && l.refused.isAlone(now)
	if l.tookAlone {
		return l.refused.takeDue(nil, limit, now)
	}
	batch := l.ready.takeDue(nil, limit, now)
	if isAlone(batch) {
		return batch
	}
	return l.refused.takeDue(batch, min(limit, len(batch)+maxRefused), now)
}

func isAlone(batch []*entry) bool { return len(batch) > 0 && batch[0].alone }

// untilDue returns how long until something is due, negative when nothing is to come.
func (l *lane) untilDue(now time.Time) time.Duration {
	wait := l.pulse.wait(now)
	for _, q := range []queue{l.ready, l.refused, l.resends} {
		if len(q) == 0 {
			continue
		}
		// A resend is overdue only when the outbox has stopped: nothing is waited for then.
		if next := q[0].due.Sub(now); next > 0 && (wait < 0 || next < wait) {
			wait = next
		}
	}
	return wait
}

func (l *lane) retry(now time.Time) {
	l.resumes, l.retried = now, now
	for _, e := range l.refused {
		if e.due.After(now) {
			e.due = now
		}
	}
	heap.Init(&l.refused)
	signal(l.wake)
}

// oldest leaves out refused events. Its cost grows with the number of pending events.
func (l *lane) oldest(now time.Time) (age time.Duration) {
	for e := range l.entries.all() {
		if e.queue != &l.resends && e.refusals == 0 {
			age = max(age, now.Sub(e.accepted))
		}
	}
	return age
}

// takesResync reports whether there is room for a resync. There is always room for one without
// owner, and for one of an owner of which the receiver has taken an event.
func (l *lane) takesResync(key core.EventKey) bool {
	return key.Owner == (types.NamespacedName{}) || l.owners.hasTaken(key.Owner) ||
		l.entries.find(key) != nil || l.entries.len()-l.keys < maxOwners
}
