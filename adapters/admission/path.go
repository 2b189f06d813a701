package admission

import (
	"regexp"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// pathPrefix begins each path to which an API server sends reviews.
const pathPrefix = "/validate/"

func pathOf(manager core.Manager) string { return pathPrefix + string(manager) }

// ManagerOf returns the manager of the path of its reviews, /validate/<manager>, or of the path of
// a subresource, which ends with a kind. It reports false for any other path.
func ManagerOf(path string) (core.Manager, bool) {
	name, found := strings.CutPrefix(path, pathPrefix)
	name, kind, hasKind := strings.Cut(name, "/")
	manager, err := core.ParseManager(name)
	isKnown := !hasKind || kindOf(kind) != ""

	return manager, found && err == nil && isKnown
}

var (
	// kindPattern matches the kinds that a path can carry.
	kindPattern = regexp.MustCompile(`^([A-Z][a-z0-9]*)+$`)
	// innerCapital matches each capital letter of these but the first one.
	innerCapital = regexp.MustCompile(`\B[A-Z]`)
)

// kindSegment returns a kind as a segment of a path, such as "stateful.set" for StatefulSet. An API
// server allows only lower case there. It is empty for a kind in another notation.
func kindSegment(kind string) string {
	if !kindPattern.MatchString(kind) {
		return ""
	}
	return strings.ToLower(innerCapital.ReplaceAllString(kind, ".$0"))
}

// kindOf returns the kind of a [kindSegment], and "" for any other text.
func kindOf(segment string) string {
	if segment == "" {
		return ""
	}

	var kind strings.Builder
	for word := range strings.SplitSeq(segment, ".") {
		if word != "" {
			kind.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}

	if text := kind.String(); kindSegment(text) == segment {
		return text
	}
	return ""
}
