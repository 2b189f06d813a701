// Package crowd decides who must leave when a server has as many connections as it may have. It counts and chooses; what a
// connection is, and how one is closed, only its caller knows.
package crowd

import (
	"container/list"
	"sync"
)

// Crowd bounds how many members are there at once, and keeps those of one origin from crowding out those of others.
//
// When it is full, a newcomer takes a place of the origin that has the most members: that of its member which has waited for
// the longest time, or, if all are busy, of the one that became busy first. So who opens many connections displaces its own. A
// newcomer of that very origin displaces nobody who is busy: it is not let in.
//
// It is safe for concurrent use, starts no goroutine, and takes the same time for any number of members.
type Crowd struct {
	limit int

	mu      sync.Mutex
	size    int
	origins map[string]*origin
	// bySize lists the origins that have so many members, and largest is the biggest such number.
	bySize  map[int]*list.List
	largest int
}

// origin is all members that come from one place.
type origin struct {
	name          string
	rank          *list.Element // in Crowd.bySize[o.size()]
	waiting, busy *list.List    // of *Member, those who have been it for longest first
}

func (o *origin) size() int { return o.waiting.Len() + o.busy.Len() }

// Member is one who was let in.
type Member struct {
	crowd  *Crowd
	origin *origin
	place  *list.Element // in origin.busy or origin.waiting; nil when it has left
	busy   bool
	leave  func()
}

// New returns a crowd of at most limit members, which must be above 0.
func New(limit int) *Crowd {
	return &Crowd{limit: limit, origins: make(map[string]*origin), bySize: make(map[int]*list.List)}
}

// Enter lets somebody in from an origin, who waits at first, or returns nil. If somebody else has to leave for that, their leave is
// called before Enter returns, once and without a lock held: it must not block. They count no more then.
func (c *Crowd) Enter(from string, leave func()) *Member {
	member, displaced := c.enter(from, leave)
	if displaced != nil {
		displaced.leave()
	}

	return member
}

func (c *Crowd) enter(from string, leave func()) (member, displaced *Member) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.size >= c.limit {
		if displaced = c.weakest(from); displaced == nil {
			return nil, nil
		}

		c.remove(displaced)
	}

	member = &Member{crowd: c, leave: leave}
	c.add(member, from)

	return member, displaced
}

// weakest returns who has to leave for a newcomer, or nil.
func (c *Crowd) weakest(from string) *Member {
	largest, _ := c.bySize[c.largest].Front().Value.(*origin)

	own := c.origins[from]
	if own != nil && own.size() == largest.size() {
		largest = own
	}

	switch {
	case largest.waiting.Len() > 0:
		return memberOf(largest.waiting.Front())
	case largest == own:
		return nil
	default:
		return memberOf(largest.busy.Front())
	}
}

func memberOf(e *list.Element) *Member {
	m, _ := e.Value.(*Member)

	return m
}

// Size returns how many members there are.
func (c *Crowd) Size() int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.size
}

// SetBusy says whether the member is at work or waits. A member that has left does not come back by it.
func (m *Member) SetBusy(busy bool) {
	m.crowd.mu.Lock()
	defer m.crowd.mu.Unlock()

	if m.place == nil || m.busy == busy {
		return
	}

	m.unlist()
	m.busy = busy
	m.enlist()
}

// Move counts the member to another origin from now on, as it is known better now.
func (m *Member) Move(to string) {
	c := m.crowd

	c.mu.Lock()
	defer c.mu.Unlock()

	if m.place == nil || m.origin.name == to {
		return
	}

	c.remove(m)
	c.add(m, to)
}

// Leave gives the place back. All calls but the first do nothing, as do those of a member that was displaced.
func (m *Member) Leave() {
	m.crowd.mu.Lock()
	defer m.crowd.mu.Unlock()

	if m.place != nil {
		m.crowd.remove(m)
	}
}

func (m *Member) enlist() {
	if m.busy {
		m.place = m.origin.busy.PushBack(m)
	} else {
		m.place = m.origin.waiting.PushBack(m)
	}
}

func (m *Member) unlist() {
	if m.busy {
		m.origin.busy.Remove(m.place)
	} else {
		m.origin.waiting.Remove(m.place)
	}

	m.place = nil
}

func (c *Crowd) add(m *Member, from string) {
	o := c.origins[from]
	if o == nil {
		o = &origin{name: from, waiting: list.New(), busy: list.New()}
		c.origins[from] = o
	}

	c.unrank(o)

	m.origin = o
	m.enlist()

	c.size++
	c.rank(o)
}

func (c *Crowd) remove(m *Member) {
	o := m.origin
	c.unrank(o)
	m.unlist()

	c.size--
	c.rank(o)
}

// rank files an origin under its size. One without members is forgotten.
func (c *Crowd) rank(o *origin) {
	size := o.size()
	if size == 0 {
		delete(c.origins, o.name)
	} else {
		if c.bySize[size] == nil {
			c.bySize[size] = list.New()
		}

		o.rank = c.bySize[size].PushBack(o)
		c.largest = max(c.largest, size)
	}

	// A size changes by one, so this is one step.
	for c.largest > 0 && c.bySize[c.largest] == nil {
		c.largest--
	}
}

func (c *Crowd) unrank(o *origin) {
	size := o.size()
	if size == 0 {
		return
	}

	alike := c.bySize[size]
	alike.Remove(o.rank)

	if alike.Len() == 0 {
		delete(c.bySize, size)
	}
}
