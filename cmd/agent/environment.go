package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

type environment map[string]string

// newEnvironment takes pairs in the form of [os.Environ].
func newEnvironment(pairs []string) environment {
	env := environment{}
	for _, pair := range pairs {
		name, text, _ := strings.Cut(pair, "=")
		env[name] = text
	}
	return env
}

func (e environment) get(name string) string { return e[name] }

// ownPrefix matches variables that are meant for the agent, even if none is a setting.
var ownPrefix = regexp.MustCompile(`(?i)^(KCP|WEBHOOK|METRICS|CANARY|OUTBOX|CONTRACT|INFORMER)_`)

// serviceLink matches the variables that Kubernetes sets for each Service of a namespace, except
// NAME_PORT.
var serviceLink = regexp.MustCompile(`_SERVICE_(HOST|PORT(_.*)?)$|_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$`)

func isServiceLink(name, text string) bool {
	return serviceLink.MatchString(name) || strings.HasSuffix(name, "_PORT") && strings.Contains(text, "://")
}

// suspicious has a warning for each variable that resembles a setting and is none.
func (e environment) suspicious(all []setting) []string {
	names := make([]string, 0, len(all))
	for _, s := range all {
		names = append(names, s.env)
	}
	var warnings []string
	for name, text := range e {
		hint := didYouMean(strings.ToUpper(name), names)
		resembles := hint != "" || ownPrefix.MatchString(name)
		if resembles && text != "" && !slices.Contains(names, name) && !isServiceLink(name, text) {
			warnings = append(warnings, fmt.Sprintf("%s: no setting has this name, it is without effect%s", name, hint))
		}
	}
	slices.Sort(warnings)
	return warnings
}

// didYouMean asks for the first of names that is nearest to name. It is empty when none is near.
func didYouMean(name string, names []string) string {
	const shortName = 6
	nearest, limit := "", 2
	if len(name) < shortName {
		limit = 1
	}
	for _, candidate := range names {
		if d := distance(name, candidate); d <= limit {
			nearest, limit = candidate, d-1
		}
	}
	if nearest == "" {
		return ""
	}
	return ", did you mean " + nearest + "?"
}

// distance is how many bytes must be inserted, deleted or replaced to make b of a (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}

	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1

		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}

			diagonal = row[j+1]
			row[j+1] = min(replaced, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
