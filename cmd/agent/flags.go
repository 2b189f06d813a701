package main

import (
	"errors"
	"fmt"
	"strings"
)

// The switches are flags without a value. --help wins over --version.
const (
	switchHelp      = "help"
	switchHelpShort = "h"
	switchVersion   = "version"
)

var (
	// errHelp means that only the help was asked for.
	errHelp = errors.New("help requested")
	// errVersion means that only the version was asked for.
	errVersion = errors.New("version requested")
)

// flags are the values of flags by name.
type flags map[string]string

// readFlags reads -name=value and --name value. Of a repeated flag the last one counts. The error names
// every argument that is wrong, unless it is errHelp or errVersion.
func readFlags(known func(name string) bool, args []string) (flags, error) {
	given := flags{}

	var wrong []error

	for len(args) > 0 {
		var err error

		args, err = given.take(known, args)
		wrong = append(wrong, err)
	}

	return given, given.requested(errors.Join(wrong...))
}

// take reads the first of args, with its value, and returns the others.
func (f flags) take(known func(name string) bool, args []string) ([]string, error) {
	arg, rest := args[0], args[1:]

	dashed, isFlag := strings.CutPrefix(arg, "-")
	name, text, hasText := strings.Cut(strings.TrimPrefix(dashed, "-"), "=")

	switch {
	case !isFlag:
		return rest, fmt.Errorf("%.64q: unexpected argument, want --name=value", arg)
	case isSwitch(name) && !hasText:
	case !known(name):
		return rest, fmt.Errorf("%.64s: unknown flag", arg)
	case hasText:
	case len(rest) == 0:
		return rest, fmt.Errorf("%s: value missing, want %[1]s=value", arg)
	default:
		text, rest = rest[0], rest[1:]
	}

	f[name] = text

	return rest, nil
}

func isSwitch(name string) bool {
	return name == switchHelp || name == switchHelpShort || name == switchVersion
}

// requested returns errHelp or errVersion if the flags ask for that, and otherwise err.
func (f flags) requested(err error) error {
	switch {
	case f.has(switchHelp), f.has(switchHelpShort):
		return errHelp
	case f.has(switchVersion):
		return errVersion
	default:
		return err
	}
}

func (f flags) has(name string) bool {
	_, ok := f[name]

	return ok
}
