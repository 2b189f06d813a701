package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
)

var errHelp, errVersion = errors.New("help requested"), errors.New("version requested")

const flagVersion = "version"

type flags map[string]string

// formerFlags are accepted without effect: kyma-project/runtime-watcher takes them, and a
// Deployment that sets them must start. The value says whether the flag needs a value.
var formerFlags = map[string]bool{
	"development": false, "kubeconfig": true, "zap-devel": false, "zap-encoder": true, "zap-log-level": true,
	"zap-stacktrace-level": true, "zap-time-encoding": true,
}

// readFlags reads -name=value and --name value. Of a repeated flag the last one counts. The error
// is errHelp or errVersion, or it names each wrong argument.
func readFlags(all []setting, args []string) (flags, error) {
	given := flags{}
	known := given.newFlagSet(all)

	var wrong []error
	for len(args) > 0 {
		err := known.Parse(args)
		left := known.Args()
		switch {
		case errors.Is(err, flag.ErrHelp):
			return nil, errHelp
		case err == nil && len(left) > 0:
			err = fmt.Errorf("%.64q: unexpected argument, want --name=value", left[0])
			left = left[1:]
		case err != nil && len(left) == len(args): // Such as "---".
			left = left[1:]
		}

		wrong = append(wrong, err)
		args = left
	}

	if given.has(flagVersion) {
		return nil, errVersion
	}

	return given, errors.Join(wrong...)
}

// newFlagSet returns a set that stores each parsed flag in f.
func (f flags) newFlagSet(all []setting) *flag.FlagSet {
	known := flag.NewFlagSet("agent", flag.ContinueOnError)
	known.SetOutput(io.Discard)
	known.Usage = func() {}
	store := func(name string) func(string) error {
		return func(text string) error {
			f[name] = text
			return nil
		}
	}

	known.BoolFunc(flagVersion, "", store(flagVersion))
	for name, needsValue := range formerFlags {
		if needsValue {
			known.Func(name, "", store(name))
		} else {
			known.BoolFunc(name, "", store(name))
		}
	}

	for _, s := range all {
		for _, env := range s.names() {
			known.Func(flagOf(env), "", store(flagOf(env)))
		}
	}
	return known
}

func (f flags) has(name string) bool {
	_, ok := f[name]
	return ok
}

func (f flags) withoutEffect() []string {
	var warnings []string
	for _, name := range slices.Sorted(maps.Keys(formerFlags)) {
		if f.has(name) {
			warnings = append(warnings, "--"+name+": a flag of a former agent, without effect")
		}
	}
	return warnings
}
