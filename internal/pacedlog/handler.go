// Package pacedlog bounds the log lines about a state that lasts.
package pacedlog

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxKinds bounds the kinds of lines that a handler distinguishes. The lines of all further kinds
// share one pace, because senders can choose any number of reasons.
const maxKinds = 100

// New returns a logger that writes the first line of a kind to next immediately, and then at most
// one line of that kind in each period of length every. The kind of a line is its message with the
// values of the attributes that keys name. An attribute "suppressed" contains the number of lines
// of that kind that were left out before. Lines below [slog.LevelInfo] are not bounded. If next is
// nil, all lines are discarded.
//
// The caller must not hold a lock that others wait for, unless next never blocks.
func New(next *slog.Logger, every time.Duration, keys ...string) *slog.Logger {
	if next == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(&handler{Handler: next.Handler(), pace: NewPace(every), keys: keys})
}

type handler struct {
	slog.Handler

	pace   *Pace
	keys   []string
	prefix string // the kind, as far as WithAttrs and WithGroup determine it
}

// Handle writes the line if it is due.
func (h *handler) Handle(ctx context.Context, record slog.Record) error {
	if record.Level < slog.LevelInfo {
		return h.Handler.Handle(ctx, record)
	}

	suppressed, due := h.pace.Take(h.kindOf(&record), cmp.Or(record.Time, time.Now()))
	if !due {
		return nil
	}

	record = record.Clone()
	record.AddAttrs(slog.Int("suppressed", suppressed))
	return h.Handler.Handle(ctx, record)
}

// kindOf returns the text that is equal for lines that share a pace.
func (h *handler) kindOf(record *slog.Record) string {
	var kind strings.Builder
	kind.WriteString(h.prefix + record.Message)
	record.Attrs(func(attr slog.Attr) bool {
		kind.WriteString(h.kindPart(attr))
		return true
	})

	return kind.String()
}

// kindPart returns the text that an attribute adds to the kind.
func (h *handler) kindPart(attr slog.Attr) string {
	if !slices.Contains(h.keys, attr.Key) {
		return ""
	}
	return "\x00" + attr.Key + "\x00" + attr.Value.String()
}

// WithAttrs implements [slog.Handler]. The attributes count for the kind.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.Handler = h.Handler.WithAttrs(attrs)

	for _, attr := range attrs {
		with.prefix += h.kindPart(attr) + "\x00"
	}
	return &with
}

func (h *handler) WithGroup(name string) slog.Handler {
	with := *h
	with.Handler = h.Handler.WithGroup(name)
	return &with
}

// Pace is the rule of [New] without a logger, for lines that are expensive to prepare. Create one
// with [NewPace]. It may be used concurrently.
type Pace struct {
	every time.Duration

	mu    sync.Mutex
	kinds map[string]*kind
}

// NewPace returns a pace of one line of each kind in every.
func NewPace(every time.Duration) *Pace { return &Pace{every: every, kinds: map[string]*kind{}} }

type kind struct {
	next       time.Time // from which a line is due
	suppressed int       // since the last line
}

// Take reports whether a line is due, and how many of its kind were left out before.
func (p *Pace) Take(name string, now time.Time) (suppressed int, due bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	k := p.findOrAddKind(name, now)
	if now.Before(k.next) {
		k.suppressed++
		return 0, false
	}

	suppressed = k.suppressed
	k.suppressed = 0
	k.next = now.Add(p.every)

	return suppressed, true
}

// findOrAddKind returns a kind, or the shared kind when there are too many. The caller must hold
// the lock.
func (p *Pace) findOrAddKind(name string, now time.Time) *kind {
	if p.kinds[name] == nil && len(p.kinds) >= maxKinds {
		// A kind that is due is deleted, together with its count.
		maps.DeleteFunc(p.kinds, func(_ string, k *kind) bool { return !now.Before(k.next) })
		if len(p.kinds) >= maxKinds {
			name = "" // No line has this kind.
		}
	}

	if p.kinds[name] == nil {
		p.kinds[name] = new(kind)
	}
	return p.kinds[name]
}
