package natsjetstream

import (
	"sync"
	"time"
)

// lines writes at most one line a minute for each reason: a runtime can cause lines without end.
type lines struct {
	mu   sync.Mutex
	last map[string]time.Time
}

const (
	lineInterval = time.Minute
	// maxReasons bounds the reasons, which a verifier may choose.
	maxReasons = 100
)

func (l *lines) allow(reason string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last, known := l.last[reason]; known && now.Sub(last) < lineInterval {
		return false
	}
	if l.last == nil || len(l.last) >= maxReasons {
		l.last = map[string]time.Time{}
	}
	l.last[reason] = now
	return true
}
