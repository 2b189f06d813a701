package statuspage

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// parameters maps each query parameter of a handler to its allowed values; nil allows any value.
type parameters map[string][]string

// selection is the part of a fleet or of installations that a request asks for. The handlers of
// both pages make one for each request.
type selection struct {
	query         url.Values
	search        string    // in lower case
	offset, limit int       // a limit of 0 is none
	expires       time.Time // zero selects all
}

// newSelection refuses parameters that it would ignore, because the answer would not show that.
func newSelection(query string, accepted parameters) (s selection, err error) {
	s.query, err = url.ParseQuery(query)
	if err != nil {
		return s, fmt.Errorf("query: %w", err)
	}

	for _, name := range slices.Sorted(maps.Keys(s.query)) {
		if err := accepted.checkValues(name, s.query[name]); err != nil {
			return s, err
		}
	}

	s.search = strings.ToLower(s.query.Get("search"))
	s.offset, err = numberOf(s.query, "offset")
	if err != nil {
		return s, err
	}
	s.limit, err = numberOf(s.query, "limit")
	if err != nil {
		return s, err
	}

	if !s.query.Has("expires") {
		return s, nil
	}

	within, err := time.ParseDuration(s.query.Get("expires"))
	if err != nil {
		return s, fmt.Errorf("expires is %q, want a time such as 4h", s.query.Get("expires"))
	}

	s.expires = time.Now().Add(within)
	return s, nil
}

// numberOf returns 0 without the parameter.
func numberOf(query url.Values, name string) (int, error) {
	if !query.Has(name) {
		return 0, nil
	}

	number, err := strconv.Atoi(query.Get(name))
	if err != nil || number < 0 {
		return 0, fmt.Errorf("%s is %q, want a number from 0", name, query.Get(name))
	}
	return number, nil
}

func (p parameters) checkValues(name string, values []string) error {
	known, ok := p[name]
	switch {
	case !ok:
		return fmt.Errorf("parameter %q is unknown, want one of %q", name, slices.Sorted(maps.Keys(p)))
	case len(values) > 1:
		return fmt.Errorf("parameter %q occurs %d times, want it once", name, len(values))
	case known != nil && !slices.Contains(known, values[0]):
		return fmt.Errorf("%s is %q, want one of %q", name, values[0], known)
	default:
		return nil
	}
}

// pageOf returns one page of the matching statuses, and the number of all matches.
func (s *selection) pageOf(f *fleet.Fleet) (statuses []fleet.Status, total int) {
	f.Range(func(status fleet.Status) bool {
		if s.matches(&status) {
			statuses = append(statuses, status)
		}
		return true
	})

	total = len(statuses)
	slices.SortFunc(statuses, s.compare())
	return part(s, statuses), total
}

func part[T any](s *selection, all []T) []T {
	all = all[min(s.offset, len(all)):]
	if s.limit > 0 {
		all = all[:min(s.limit, len(all))]
	}
	return all
}

func (s *selection) matches(status *fleet.Status) bool {
	if s.query.Has("version") && !slices.Contains(status.Versions(), s.query.Get("version")) {
		return false
	}
	if !s.expires.IsZero() && !slices.ContainsFunc(status.Replicas, s.endsSoon) {
		return false
	}
	return s.isValue("state", string(status.State)) &&
		s.matchesCommon(string(status.Reason), status.Manager, status.Runtime)
}

func (s *selection) endsSoon(p fleet.Replica) bool {
	return !p.CertificateExpiry.IsZero() && p.CertificateExpiry.Before(s.expires)
}

// matchesCommon compares the parameters that both handlers have. The search ignores case.
func (s *selection) matchesCommon(reason string, manager core.Manager, id core.RuntimeID) bool {
	isNamed := s.isValue("manager", string(manager)) && s.isValue("runtime", string(id))
	return isNamed && s.isValue("reason", reason) && strings.Contains(strings.ToLower(string(id)), s.search)
}

// isValue reports whether the query has no such parameter, or one with that value.
func (s *selection) isValue(name, value string) bool {
	return !s.query.Has(name) || s.query.Get(name) == value
}

func (s *selection) compare() func(a, b fleet.Status) int {
	if !s.query.Has("order") {
		return compareNames
	}

	badness := make(map[fleet.Condition]int)
	for i, condition := range fleet.Conditions() { // The worst is the last.
		badness[condition] = i
	}

	return func(a, b fleet.Status) int {
		return cmp.Or(
			cmp.Compare(badness[fleet.Condition{State: b.State, Reason: b.Reason}],
				badness[fleet.Condition{State: a.State, Reason: a.Reason}]),
			compareNames(a, b))
	}
}

func compareNames(a, b fleet.Status) int {
	return cmp.Or(cmp.Compare(a.Runtime, b.Runtime), cmp.Compare(a.Manager, b.Manager))
}
