package httpserver

import (
	"sync"
	"time"
)

// logEvery is the time between two log lines of one kind.
const logEvery = time.Minute

// logPace bounds log lines to one of each kind every logEvery. The zero value is ready to use.
type logPace struct {
	mu    sync.Mutex
	kinds map[string]*kindPace
}

// kindPace is the state of one kind of log lines.
type kindPace struct {
	// next is the time from which a line is allowed.
	next time.Time
	// suppressed counts the lines since the last one.
	suppressed int
}

// allow reports whether a line of that kind may be logged, and how many were suppressed before it.
func (p *logPace) allow(kind string) (suppressed int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.kinds[kind]
	if k == nil {
		k = new(kindPace)
		p.add(kind, k)
	}
	now := time.Now()
	if now.Before(k.next) {
		k.suppressed++
		return 0, false
	}
	suppressed, k.suppressed, k.next = k.suppressed, 0, now.Add(logEvery)
	return suppressed, true
}

// add stores a new kind. The kinds are constants, so there are few.
func (p *logPace) add(kind string, k *kindPace) {
	if p.kinds == nil {
		p.kinds = make(map[string]*kindPace)
	}
	p.kinds[kind] = k
}
