package listener

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"slices"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// failures are the elements of a batch that were not taken, by their index.
type failures map[int]answer

// add notes the answer to an element, unless it was taken.
func (f failures) add(index int, a answer) {
	if a.reason != "" {
		f[index] = a
	}
}

func (f failures) all(match func(answer) bool) bool {
	for _, a := range f {
		if !match(a) {
			return false
		}
	}
	return true
}

// answer returns the answer to a request with these failures. The first one that belongs to the
// sender or to this replica is the answer to the request. Otherwise each is named, and concerns its
// element alone.
func (f failures) answer(version contract.Version) answer {
	if len(f) == 0 {
		return answer{status: version.Status()}
	}
	indexes := slices.Sorted(maps.Keys(f))
	for _, index := range indexes {
		if a := f[index]; a.whole {
			return a
		}
	}
	return f.partial(version, f[indexes[0]])
}

// partial returns the answer that names each failure. Contracts v1 and v2 have one event, and their
// deployed agents read the status only: they retry 500, and gateways do not. A gateway that retried
// it would end with the answer of a replica that does not lead. A verifier that is not ready is no
// failure at the event, and another replica may have one that is.
func (f failures) partial(version contract.Version, first answer) answer {
	refused := make(map[int]contract.Refusal, len(f))
	for index, a := range f {
		refused[index] = a.refusal()
	}
	if version.MaxEvents() == 1 {
		first.failed = refused
		cold := first.unverified && errors.Is(first.err, core.ErrNotReady)
		if first.status == http.StatusServiceUnavailable && !cold {
			first.status = http.StatusInternalServerError
		}
		return first
	}
	p := contract.Partial(refused)
	return answer{status: p.Status, reason: p.Reason, failed: p.Failed, err: first.err}
}

var errRefused = errors.New("refused")

// errors returns the failures as a fleet takes them.
func (f failures) errors() core.EventErrors {
	refused := make(core.EventErrors, len(f))
	for i, a := range f {
		refused[i] = cmp.Or(a.err, errRefused)
	}
	return refused
}
