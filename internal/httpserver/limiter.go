package httpserver

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"
)

// limiter bounds open connections. When it is full, a new connection evicts the oldest idle one of
// the origin that has the most. If none of that origin is idle, it evicts the oldest busy one,
// unless it is of that origin itself: then it gets no slot.
//
// An evicted connection takes memory until its goroutine has noticed. So the limiter also bounds
// those that have not ended yet: see awaitEvicted.
//
// It is safe for concurrent use, starts no goroutine, and takes constant time per call.
type limiter struct {
	limit int
	// mostEnding bounds the evicted connections that have not ended yet.
	mostEnding int

	// mu guards the fields below.
	mu      sync.Mutex
	size    int
	origins map[string]*originSlots
	// bySize lists the origins with that many slots. largest is the biggest such number.
	bySize  map[int]*list.List
	largest int
	// ending counts the evicted slots that were not released yet.
	ending int
	// ended is closed when one of these is released. It is nil while awaitEvicted does not wait.
	ended chan struct{}
}

type originSlots struct {
	name string
	// rank is the place in limiter.bySize[o.size()].
	rank       *list.Element
	idle, busy *list.List
}

func (o *originSlots) size() int { return o.idle.Len() + o.busy.Len() }

// slot is the place of one open connection. Its fields are guarded by limiter.mu, except
// limiter, evict and kept, which do not change.
type slot struct {
	limiter *limiter
	origin  *originSlots
	// place is in origin.busy or origin.idle. It is nil after release or eviction.
	place *list.Element
	busy  bool
	// ending means that the slot was evicted, and that its connection has not ended yet.
	ending bool
	// evict closes the connection. It does not block, and calls no function of the limiter.
	evict func()
	// kept has the value that the handler keeps with the connection.
	kept *atomic.Value
}

// endingShare is the part of the limit of connections that evicted ones may take in addition.
const endingShare = 8

func newLimiter(limit int) *limiter {
	return &limiter{
		limit: limit, mostEnding: max(limit/endingShare, 1),
		origins: make(map[string]*originSlots), bySize: make(map[int]*list.List),
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
// that is closed when there may be some.
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

// acquire returns an idle slot for origin, or nil, and whether it has evicted another slot. It
// calls evict of that slot before it returns and without a lock.
func (l *limiter) acquire(origin string, evict func(), kept *atomic.Value) (*slot, bool) {
	acquired, evicted := l.exchange(origin, evict, kept)
	if evicted != nil {
		evicted.evict()
	}
	return acquired, evicted != nil
}

func (l *limiter) exchange(origin string, evict func(), kept *atomic.Value) (acquired, evicted *slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size >= l.limit {
		if evicted = l.victim(origin); evicted == nil {
			return nil, nil
		}
		l.remove(evicted)
		evicted.ending = true
		l.ending++
	}
	acquired = &slot{limiter: l, evict: evict, kept: kept}
	l.add(acquired, origin)
	return acquired, evicted
}

func (l *limiter) victim(origin string) *slot {
	largest, _ := l.bySize[l.largest].Front().Value.(*originSlots)
	own := l.origins[origin]
	// With equal numbers, the origin of the new connection loses one.
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
	for _, s := range l.all() {
		s.evict()
	}
}

// all returns the slots in use.
func (l *limiter) all() []*slot {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*slot, 0, l.size)
	for _, o := range l.origins {
		for _, slots := range []*list.List{o.idle, o.busy} {
			for e := slots.Front(); e != nil; e = e.Next() {
				s, _ := e.Value.(*slot)
				all = append(all, s)
			}
		}
	}
	return all
}

// update calls change with the lock, unless the slot was released or evicted.
func (s *slot) update(change func(l *limiter)) {
	s.limiter.mu.Lock()
	defer s.limiter.mu.Unlock()
	if s.place != nil {
		change(s.limiter)
	}
}

func (s *slot) setBusy(busy bool) {
	s.update(func(*limiter) {
		if s.busy != busy {
			s.list().Remove(s.place)
			s.busy = busy
			s.place = s.list().PushBack(s)
		}
	})
}

func (s *slot) move(origin string) {
	s.update(func(l *limiter) {
		if s.origin.name != origin {
			l.remove(s)
			l.add(s, origin)
		}
	})
}

// release is called when the connection has ended, also that of an evicted slot.
func (s *slot) release() {
	s.update(func(l *limiter) { l.remove(s) })
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

// list is that of its origin. The caller must hold the lock, as for the functions below.
func (s *slot) list() *list.List {
	if s.busy {
		return s.origin.busy
	}
	return s.origin.idle
}

func (l *limiter) add(s *slot, origin string) {
	o := l.origins[origin]
	if o == nil {
		o = &originSlots{name: origin, idle: list.New(), busy: list.New()}
		l.origins[origin] = o
	}
	l.unrank(o)
	s.origin = o
	s.place = s.list().PushBack(s)
	l.size++
	l.rank(o)
}

func (l *limiter) remove(s *slot) {
	o := s.origin
	l.unrank(o)
	s.list().Remove(s.place)
	s.place = nil
	l.size--
	l.rank(o)
}

// rank lists an origin under its size, and deletes one without slots.
func (l *limiter) rank(o *originSlots) {
	size := o.size()
	if size == 0 {
		delete(l.origins, o.name)
	} else {
		if l.bySize[size] == nil {
			l.bySize[size] = list.New()
		}
		o.rank = l.bySize[size].PushBack(o)
		l.largest = max(l.largest, size)
	}
	// A size changes by one, so this loop runs at most once.
	for l.largest > 0 && l.bySize[l.largest] == nil {
		l.largest--
	}
}

func (l *limiter) unrank(o *originSlots) {
	size := o.size()
	if size == 0 {
		return
	}
	alike := l.bySize[size]
	alike.Remove(o.rank)
	if alike.Len() == 0 {
		delete(l.bySize, size)
	}
}
