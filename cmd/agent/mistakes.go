package main

import (
	"errors"
	"slices"
	"strings"
)

// errSettings means that settings are wrong. An error that wraps it names all of them.
var errSettings = errors.New("wrong settings, agent --help lists all")

type wrongSettings struct{ mistakes, warnings []string }

func (w *wrongSettings) Error() string {
	lines := slices.Clone(w.mistakes)
	for _, warning := range w.warnings {
		lines = append(lines, "warning: "+warning)
	}
	return errSettings.Error() + ":\n  " + strings.Join(lines, "\n  ")
}

func (*wrongSettings) Unwrap() error { return errSettings }

func textsOf(err error) (texts []string) {
	joined, ok := err.(interface{ Unwrap() []error }) // Only err itself, not an error in it.
	if !ok {
		return []string{err.Error()}
	}

	for _, one := range joined.Unwrap() {
		texts = append(texts, textsOf(one)...)
	}
	return texts
}
