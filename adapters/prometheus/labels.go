package prometheus

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Other is the value of the label "manager" for all managers without series of their own. No manager can have this name.
const Other = "_other"

const (
	labelCause    = "cause"
	labelCode     = "code"
	labelContract = "contract"
	labelDecision = "decision"
	labelManager  = "manager"
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
	// otherValue stands for values beyond the bound of any other label. It is what core.Reason says of an unknown cause, too.
	otherValue = "other"
	// maxValues bounds each label that is not a manager: its values are words of our own code, so that reaching it is a mistake there.
	maxValues = 64
	// maxValueBytes bounds one value.
	maxValueBytes = 64
)

// vocabulary bounds the values of one label: the first maxValues of them are kept, the rest becomes "other". Its zero value is ready,
// and it is safe for concurrent use.
type vocabulary struct {
	mu   sync.Mutex
	seen map[string]struct{}
}

// value returns word, or "other" when there is no room for it. The empty word stays empty: Prometheus takes it for an absent label.
func (v *vocabulary) value(word string) string {
	v.mu.Lock()
	defer v.mu.Unlock()

	if _, ok := v.seen[word]; ok || word == "" {
		return word
	}

	// Bytes that are not UTF-8 would make the whole scrape fail.
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

func validManager(manager core.Manager) bool {
	_, err := core.ParseManager(string(manager))

	return err == nil
}
