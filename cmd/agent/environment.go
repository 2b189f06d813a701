package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

type environment map[string]string

func newEnvironment(pairs []string) environment {
	env := environment{}
	for _, pair := range pairs {
		name, text, _ := strings.Cut(pair, "=")
		env[name] = text
	}
	return env
}

func (e environment) get(name string) string { return e[name] }

// eitherCase returns the variable with the name in upper case or in lower case.
func (e environment) eitherCase(name string) string {
	if text := e[name]; text != "" {
		return text
	}
	return e[strings.ToLower(name)]
}

var ownPrefix = regexp.MustCompile(`(?i)^(KCP|CONTROL_PLANE|OWNER|WEBHOOK|METRICS|CANARY|OUTBOX|CONTRACT|INFORMER)_`)

// serviceLink matches the variables that Kubernetes sets for each Service of a namespace, except
// NAME_PORT.
var serviceLink = regexp.MustCompile(`_SERVICE_(HOST|PORT(_.*)?)$|_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$`)

func isServiceLink(name, text string) bool {
	if serviceLink.MatchString(name) {
		return true
	}
	return strings.HasSuffix(name, "_PORT") && strings.Contains(text, "://")
}

func (e environment) unknownSettings(all []setting) []string {
	names := make([]string, 0, len(all))
	for _, s := range all {
		names = append(names, s.names()...)
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
