package prometheus

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"
)

const (
	labelCause    = "cause"
	labelCode     = "code"
	labelContract = "contract"
	labelDecision = "decision"
	labelFate     = "fate"
	labelManager  = "manager"
	labelPhase    = "phase"
	labelPlace    = "place"
	labelProblem  = "problem"
	labelReason   = "reason"
	labelResult   = "result"
	labelRuntime  = "runtime"
	labelState    = "state"
	labelServer   = "server"
	labelUse      = "use"
)

const (
	// otherValue stands for values beyond the limit. It is also the result of core.Reason for an
	// unknown cause.
	otherValue = "other"
	// maxValues bounds the values of a label other than the manager. They are constants of our
	// code.
	maxValues = 64
	// maxValueBytes bounds one value.
	maxValueBytes = 64
)

// vocabulary bounds the values of one label: the first maxValues are kept, others become "other".
// The zero value is ready to use. It is safe for concurrent use.
type vocabulary struct {
	mu   sync.Mutex
	seen map[string]struct{}
}

// value returns word, or "other" when there is no room for it. An empty word stays empty.
func (v *vocabulary) value(word string) string {
	v.mu.Lock()
	defer v.mu.Unlock()

	if _, ok := v.seen[word]; ok || word == "" {
		return word
	}

	// A value that is not UTF-8 makes the whole scrape fail.
	if len(v.seen) >= maxValues || len(word) > maxValueBytes || !utf8.ValidString(word) {
		return otherValue
	}

	if v.seen == nil {
		v.seen = make(map[string]struct{})
	}

	v.seen[word] = struct{}{}

	return word
}

// values returns the words that have values of their own.
func (v *vocabulary) values() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Collect(maps.Keys(v.seen))
}

// code returns the label value of an HTTP status.
func code(status int) string {
	if status < 100 || status > 599 {
		return otherValue
	}
	return strconv.Itoa(status)
}
