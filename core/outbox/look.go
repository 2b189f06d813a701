package outbox

import (
	"container/heap"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// A key is looked at once more, at a time of its own, when the first look at what happened may have come before the commit. Until then its
// entry rests, in a queue beside the one of the events: it is no event yet, so it is neither counted nor pending, but it keeps its place
// among the keys. What a newer event or an earlier rest asks for is never forgotten: an entry looks again at the latest of the times.

// after is the time of a second look, zero when none is asked for.
func after(now time.Time, again time.Duration) time.Time {
	if again <= 0 {
		return time.Time{}
	}

	return now.Add(again)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}

	return b
}

// looks returns where entries of a kind rest. Resyncs have a place of their own, as they stand in for the others.
func (l *lane) looks(kind core.Kind) *queue {
	if kind == core.KindResync {
		return &l.resyncLooks
	}

	return &l.changeLooks
}

// rest lets an entry that is in no queue wait for its second look. That is an event of its own, with a number of its own.
func (l *lane) rest(e *entry) {
	*e = entry{event: e.event, due: e.again, again: e.again, rests: true}
	e.event.ID, e.event.Epoch, e.event.Sequence = "", "", 0

	heap.Push(l.looks(e.event.Kind), e)

	if e.position == 0 {
		l.stir()
	}
}

// resting reports whether second looks wait.
func (l *lane) resting() bool { return len(l.changeLooks)+len(l.resyncLooks) > 0 }

// rouse takes an entry from its rest: it is an event again, accepted now. As it is due after whatever was sent before, it is also numbered
// after that.
func (l *lane) rouse(e *entry, now, due time.Time) {
	heap.Remove(l.looks(e.event.Kind), e.position)

	l.order++
	e.rests, e.accepted, e.due, e.order = false, now, due, l.order
	l.enqueue(e)
}

// rouseDue takes the entries from their rest whose time has come, and returns how many.
func (l *lane) rouseDue(now time.Time) (n int64) {
	for _, looks := range []*queue{&l.resyncLooks, &l.changeLooks} {
		for ; len(*looks) > 0 && !(*looks)[0].due.After(now); n++ {
			l.rouse((*looks)[0], now, now)
		}
	}

	return n
}

// lookAgain takes the second looks whose time has come.
func (o *Outbox) lookAgain(l *lane, now time.Time) {
	if o.stopped {
		return
	}

	if n := l.rouseDue(now); n > 0 {
		o.count(l.manager, Counts{Accepted: n, Pending: n})
	}
}

// makeRoom gives up the second look at one key, of any manager, for the first look at another, and reports whether there was one. A resync
// takes its place, not earlier than it would have been, so that there is one in [Options].LookAgain at most.
func (o *Outbox) makeRoom(now time.Time) bool {
	for _, l := range o.lanes {
		last := len(l.changeLooks) - 1
		if last < 0 {
			continue
		}

		e, _ := heap.Remove(&l.changeLooks, last).(*entry)
		delete(l.entries, e.event.Key())

		o.keys--
		l.plan(l.standIn(e.event), after(now, o.opts.LookAgain))

		return true
	}

	return false
}

// plan asks for a look at what a resync is for, at again and not before.
func (l *lane) plan(resync core.WatchEvent, again time.Time) {
	key := resync.Key()

	e := l.entries[key]
	if e == nil {
		e = &entry{event: resync, again: again}
		l.entries[key] = e
		l.resyncs++
		l.rest(e)
	}

	e.again = later(e.again, again)
}
