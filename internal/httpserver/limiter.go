package httpserver

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"
)

// limiter bounds open connections. When it is full, a new connection evicts the oldest idle
// connection of the origin that has the most connections. If that origin has no idle connection,
// the new connection evicts its oldest busy connection, unless the new connection belongs to the
// same origin: then it gets no slot.
//
// A connection without a complete TLS handshake costs its client nothing, and one client may have
// many addresses. So handshakes are counted separately. While they have more than a share of the
// slots, a new connection evicts one of them, and no connection of a client that has proved itself.
//
// An evicted connection takes memory until its goroutine has noticed. So the limiter also bounds
// the evicted connections that have not ended yet: see awaitEvicted.
//
// It is safe for concurrent use, starts no goroutine, and takes constant time per call.
type limiter struct {
	limit int
	// mostEnding bounds the evicted connections that have not ended yet.
	mostEnding int

	// mostShaking is the number of incomplete handshakes up to which a handshake evicts other
	// connections.
	mostShaking int

	// mu guards the fields below.
	mu sync.Mutex
	// shaking contains the connections without a complete handshake, and settled contains all
	// others.
	shaking, settled *ranking
	// ending counts the evicted slots that were not released yet.
	ending int
	// ended is closed when one of the evicted slots is released. It is nil while awaitEvicted does
	// not wait.
	ended chan struct{}
}

// ranking maps each origin to its slots, and sorts the origins by the number of their slots. The
// lock of the limiter guards it.
type ranking struct {
	size    int
	origins map[string]*originSlots
	// bySize lists the origins with that many slots. largest is the biggest such number.
	bySize  map[int]*list.List
	largest int
}

func newRanking() *ranking {
	return &ranking{origins: make(map[string]*originSlots), bySize: make(map[int]*list.List)}
}

type originSlots struct {
	name string
	// rank is the place in ranking.bySize[o.size()].
	rank       *list.Element
	idle, busy *list.List
}

func (o *originSlots) size() int { return o.idle.Len() + o.busy.Len() }

// slot is the place of one open connection. Its fields are guarded by limiter.mu, except
// limiter, evict and kept, which do not change.
type slot struct {
	limiter *limiter
	ranking *ranking
	origin  *originSlots
	// place is in origin.busy or origin.idle. It is nil after release or eviction.
	place *list.Element
	busy  bool
	// ending means that the slot was evicted, and that its connection has not ended yet.
	ending bool
	// evict closes the connection. It does not block, and calls no function of the limiter.
	evict func()
	// kept contains the value that the handler keeps with the connection.
	kept *atomic.Value
}

const (
	// endingShare is the part of the limit of connections that evicted ones may take in addition.
	endingShare = 8
	// shakingShare is the part of the limit that strangers may take from proved clients. Without
	// it, no new client could complete a handshake while all slots are in use.
	shakingShare = 4
)

func newLimiter(limit int) *limiter {
	return &limiter{
		limit: limit, mostEnding: max(limit/endingShare, 1), mostShaking: max(limit/shakingShare, 1),
		shaking: newRanking(), settled: newRanking(),
	}
}

// evictedPatience bounds the wait of awaitEvicted. A handler that does not notice the end of its
// connection must not keep others from connecting.
const evictedPatience = 100 * time.Millisecond

// awaitEvicted blocks while too many evicted connections have not ended yet, at most for
// evictedPatience, or until done is closed. Without this wait, clients that connect again and again
// would fill the memory with connections that are about to end.
func (l *limiter) awaitEvicted(done <-chan struct{}) {
	ended := l.tooManyEnding()
	if ended == nil {
		return // No timer is made where nothing waits.
	}

	late := time.NewTimer(evictedPatience)
	defer late.Stop()

	for ; ended != nil; ended = l.tooManyEnding() {
		select {
		case <-ended:
		case <-late.C:
			return
		case <-done:
			return
		}
	}
}

// tooManyEnding returns nil if there is room for another eviction. Otherwise it returns a channel
// that is closed when there may be room.
func (l *limiter) tooManyEnding() (ended <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.ending < l.mostEnding {
		return nil
	}
	if l.ended == nil {
		l.ended = make(chan struct{})
	}

	return l.ended
}

// claim is a new connection that needs a slot.
type claim struct {
	origin string
	// shakes means that a TLS handshake comes first.
	shakes bool
	// evict and kept become the fields of the [slot].
	evict func()
	kept  *atomic.Value
}

// acquireSlot returns an idle slot, or nil, and whether it has evicted another slot. Before it
// returns, it calls evict of the other slot without the lock.
func (l *limiter) acquireSlot(c claim) (*slot, bool) {
	acquired, evicted := l.exchangeSlot(c)
	if evicted != nil {
		evicted.evict()
	}
	return acquired, evicted != nil
}

// exchangeSlot is the part of acquireSlot that holds the lock. It does not call evict.
func (l *limiter) exchangeSlot(c claim) (acquired, evicted *slot) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.size() >= l.limit {
		evicted = l.findVictim(c.origin)
		if evicted == nil {
			return nil, nil
		}

		evicted.ranking.removeSlot(evicted)
		evicted.ending = true
		l.ending++
	}

	acquired = &slot{limiter: l, evict: c.evict, kept: c.kept}
	if c.shakes {
		l.shaking.addSlot(acquired, c.origin)
	} else {
		l.settled.addSlot(acquired, c.origin)
	}

	return acquired, evicted
}

// size is the number of slots in use. The caller must hold the lock.
func (l *limiter) size() int { return l.shaking.size + l.settled.size }

// findVictim returns the slot that a new connection of an origin evicts, nil if it evicts none.
func (l *limiter) findVictim(origin string) *slot {
	if l.shaking.size > l.mostShaking || l.settled.size == 0 {
		return l.shaking.findVictim(origin)
	}
	return l.settled.findVictim(origin)
}

func (r *ranking) findVictim(origin string) *slot {
	largest, _ := r.bySize[r.largest].Front().Value.(*originSlots)
	own := r.origins[origin]
	// With equal numbers, the origin of the new connection loses a slot.
	if own != nil && own.size() == largest.size() {
		largest = own
	}

	switch {
	case largest.idle.Len() > 0:
		return oldest(largest.idle)
	case largest == own:
		return nil
	default:
		return oldest(largest.busy)
	}
}

// oldest returns the first slot of a list that is not empty.
func oldest(slots *list.List) *slot {
	s, _ := slots.Front().Value.(*slot)
	return s
}

// evictAll calls evict of all slots, which stay in use until they are released.
func (l *limiter) evictAll() {
	for _, s := range l.allSlots() {
		s.evict()
	}
}

// allSlots returns the slots in use.
func (l *limiter) allSlots() []*slot {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.settled.appendSlots(l.shaking.appendSlots(make([]*slot, 0, l.size())))
}

func (r *ranking) appendSlots(all []*slot) []*slot {
	for _, o := range r.origins {
		for _, slots := range []*list.List{o.idle, o.busy} {
			for e := slots.Front(); e != nil; e = e.Next() {
				s, _ := e.Value.(*slot)
				all = append(all, s)
			}
		}
	}
	return all
}

// updateIfHeld calls change with the lock, unless the slot was released or evicted.
func (s *slot) updateIfHeld(change func(l *limiter)) {
	s.limiter.mu.Lock()
	defer s.limiter.mu.Unlock()

	if s.place != nil {
		change(s.limiter)
	}
}

func (s *slot) setBusy(busy bool) {
	s.updateIfHeld(func(*limiter) {
		if s.busy != busy {
			s.originList().Remove(s.place)
			s.busy = busy
			s.place = s.originList().PushBack(s)
		}
	})
}

// moveToOrigin counts the slot to another origin.
func (s *slot) moveToOrigin(origin string) {
	s.updateIfHeld(func(*limiter) {
		if s.origin.name != origin {
			s.ranking.removeSlot(s)
			s.ranking.addSlot(s, origin)
		}
	})
}

// markSettled notes that the handshake of the connection is complete.
func (s *slot) markSettled() {
	s.updateIfHeld(func(l *limiter) {
		if s.ranking == l.shaking {
			l.shaking.removeSlot(s)
			l.settled.addSlot(s, s.origin.name)
		}
	})
}

// release is called when the connection has ended, also for an evicted slot.
func (s *slot) release() {
	s.updateIfHeld(func(*limiter) { s.ranking.removeSlot(s) })
	s.limiter.noteEnded(s)
}

// noteEnded counts the end of the connection of an evicted slot once.
func (l *limiter) noteEnded(s *slot) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if !s.ending {
		return
	}

	s.ending = false
	l.ending--

	if l.ended != nil {
		close(l.ended)
		l.ended = nil
	}
}

// originList is the list of the slot in its origin. The caller must hold the lock, as for the
// functions below.
func (s *slot) originList() *list.List {
	if s.busy {
		return s.origin.busy
	}
	return s.origin.idle
}

func (r *ranking) addSlot(s *slot, origin string) {
	o := r.origins[origin]
	if o == nil {
		o = &originSlots{name: origin, idle: list.New(), busy: list.New()}
		r.origins[origin] = o
	}

	r.unrankOrigin(o)
	s.ranking = r
	s.origin = o
	s.place = s.originList().PushBack(s)
	r.size++
	r.rankOrigin(o)
}

func (r *ranking) removeSlot(s *slot) {
	o := s.origin
	r.unrankOrigin(o)
	s.originList().Remove(s.place)
	s.place = nil
	r.size--
	r.rankOrigin(o)
}

// rankOrigin lists an origin under its size, and deletes one without slots.
func (r *ranking) rankOrigin(o *originSlots) {
	size := o.size()
	if size == 0 {
		delete(r.origins, o.name)
	} else {
		if r.bySize[size] == nil {
			r.bySize[size] = list.New()
		}

		o.rank = r.bySize[size].PushBack(o)
		r.largest = max(r.largest, size)
	}

	// A size changes by one, so this loop runs at most once.
	for r.largest > 0 && r.bySize[r.largest] == nil {
		r.largest--
	}
}

// unrankOrigin removes an origin from the list of its size, which is about to change.
func (r *ranking) unrankOrigin(o *originSlots) {
	size := o.size()
	if size == 0 {
		return
	}

	alike := r.bySize[size]
	alike.Remove(o.rank)
	if alike.Len() == 0 {
		delete(r.bySize, size)
	}
}
