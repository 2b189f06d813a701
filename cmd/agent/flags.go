package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

var (
	// errHelp means that only the help was requested.
	errHelp = errors.New("help requested")
	// errVersion means that only the version was requested.
	errVersion = errors.New("version requested")
)

// flags are the given values by the name of their flag.
type flags map[string]string

// flagSet has the name of each flag, and whether it needs a value.
type flagSet map[string]bool

// formerFlags are accepted without effect: kyma-project/runtime-watcher takes them, and a
// Deployment that sets them must start.
var formerFlags = flagSet{
	"development": false, "kubeconfig": true, "zap-devel": false, "zap-encoder": true, "zap-log-level": true,
	"zap-stacktrace-level": true, "zap-time-encoding": true,
}

func newFlagSet(all []setting) flagSet {
	known := flagSet{"help": false, "h": false, "version": false}
	maps.Copy(known, formerFlags)
	for _, s := range all {
		known[s.flag()] = true
	}
	return known
}

// readFlags reads -name=value and --name value. Of a repeated flag the last one counts. The error
// is errHelp or errVersion, or it names each wrong argument.
func readFlags(all []setting, args []string) (flags, error) {
	given, known := flags{}, newFlagSet(all)

	var wrong []error

	for len(args) > 0 {
		var err error

		args, err = given.take(args, known)
		wrong = append(wrong, err)
	}

	switch {
	case given.has("help"), given.has("h"):
		return nil, errHelp
	case given.has("version"):
		return nil, errVersion
	default:
		return given, errors.Join(wrong...)
	}
}

// take reads the first of args, with its value, and returns the others.
func (f flags) take(args []string, known flagSet) ([]string, error) {
	arg, rest := args[0], args[1:]

	dashed, isFlag := strings.CutPrefix(arg, "-")
	name, text, hasText := strings.Cut(strings.TrimPrefix(dashed, "-"), "=")
	needsValue, isKnown := known[name]

	switch {
	case !isFlag:
		return rest, fmt.Errorf("%.64q: unexpected argument, want --name=value", arg)
	case !isKnown:
		return rest, fmt.Errorf("%.64q: unknown flag%s", arg, didYouMean("--", name, known.names()))
	case hasText, !needsValue:
	case len(rest) == 0:
		return rest, fmt.Errorf("%s: value missing, want %[1]s=value", arg)
	default:
		text, rest = rest[0], rest[1:]
	}

	f[name] = text

	return rest, nil
}

func (f flags) has(name string) bool {
	_, ok := f[name]
	return ok
}

// withoutEffect has a warning for each former flag.
func (f flags) withoutEffect() []string {
	var warnings []string
	for _, name := range formerFlags.names() {
		if f.has(name) {
			warnings = append(warnings, "--"+name+": a flag of a former agent, without effect")
		}
	}
	return warnings
}

func (s flagSet) names() []string { return slices.Sorted(maps.Keys(s)) }
