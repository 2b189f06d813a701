package prometheus

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/runtime-watcher/runtime-watcher/core"
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
	// A value that is not UTF-8 makes the whole scrape fail.
	isValid := func() bool { return len(word) <= maxValueBytes && utf8.ValidString(word) }
	if word == "" || v.take(word, maxValues, isValid) {
		return word
	}
	return otherValue
}

// take reports whether word is known, or valid and among the first words.
func (v *vocabulary) take(word string, most int, isValid func() bool) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, known := v.seen[word]; known {
		return true
	}
	if len(v.seen) >= most || !isValid() {
		return false
	}
	if v.seen == nil {
		v.seen = make(map[string]struct{})
	}
	v.seen[word] = struct{}{}
	return true
}

func (v *vocabulary) values() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Collect(maps.Keys(v.seen))
}

// otherManager is the value of the label "manager" for all managers without series of their own. It
// is no valid name of a manager.
const otherManager = "_other"

// managers bounds the values of the label "manager". It is safe for concurrent use.
type managers struct {
	vocabulary

	max int
}

// value returns the manager, or "_other" when its name is invalid or there is no room for it.
func (m *managers) value(manager core.Manager) string {
	if m.take(string(manager), m.max, func() bool { return validManager(manager) }) {
		return string(manager)
	}
	return otherManager
}

func validManager(manager core.Manager) bool {
	_, err := core.ParseManager(string(manager))
	return err == nil
}

func code(status int) string {
	if status < 100 || status > 599 {
		return otherValue
	}
	return strconv.Itoa(status)
}
