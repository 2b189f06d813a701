package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// errSettings means that settings are wrong. An error that wraps it names all of them.
var errSettings = errors.New("wrong settings, agent --help lists all")

const envInstance = "INSTANCE"

// setting is one flag, and the environment variable of the same name.
type setting struct {
	// env is the variable. The flag has the same name in lower case with '-' for '_'.
	env string
	value
	// fallback is the default. It is empty for none.
	fallback string
	required bool
	// lenient makes a wrong variable a warning, and the default is used. A wrong flag stays a
	// mistake.
	lenient bool
	help    string
}

// value is the kind of text that a setting takes, and the place that it is stored in.
type value struct {
	kind string
	// set parses a text that is not empty. Its error describes a valid text.
	set func(text string) error
}

func required(env string, v value, help string) setting {
	return setting{env: env, value: v, required: true, help: help}
}

func optional(env string, v value, fallback, help string) setting {
	return setting{env: env, value: v, fallback: fallback, help: help}
}

func lenient(s setting) setting {
	s.lenient = true
	return s
}

func (s setting) flag() string { return strings.ReplaceAll(strings.ToLower(s.env), "_", "-") }

// readSettings reads and checks the settings of the agent. The error is errHelp, errVersion, or
// wraps errSettings and names all mistakes.
func readSettings(args []string, env environment) (config, error) {
	c := config{getenv: env.get}
	r, err := resolve(settings(&c), args, env)
	if errors.Is(err, errHelp) || errors.Is(err, errVersion) {
		return config{}, err
	}
	if err := errors.Join(err, c.check()); err != nil {
		return config{}, &wrongSettings{textsOf(err), r.warnings}
	}
	c.effective, c.warnings = r.effective, slices.Concat(r.warnings, c.doubts())
	return c, nil
}

// wrongSettings are mistakes and warnings. The error has one per line.
type wrongSettings struct{ mistakes, warnings []string }

func (w *wrongSettings) Error() string {
	lines := slices.Clone(w.mistakes)
	for _, warning := range w.warnings {
		lines = append(lines, "warning: "+warning)
	}
	return errSettings.Error() + ":\n  " + strings.Join(lines, "\n  ")
}

func (*wrongSettings) Unwrap() error { return errSettings }

// textsOf returns the texts of the errors that are joined in err.
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

type resolution struct {
	given flags
	env   environment
	// effective are the texts of the settings that are set, also by their default.
	effective entries
	warnings  []string
}

// resolve takes each setting from its flag, else from its variable, else from its default. An empty
// variable counts as unset. The error is errHelp, errVersion, or names all mistakes, one per line.
func resolve(all []setting, args []string, env environment) (resolution, error) {
	given, err := readFlags(all, args)
	r := resolution{given: given, env: env, warnings: append(given.withoutEffect(), env.suspicious(all)...)}
	if errors.Is(err, errHelp) || errors.Is(err, errVersion) {
		return r, err
	}
	wrong := []error{err}
	for _, s := range all {
		wrong = append(wrong, r.set(s))
	}
	return r, errors.Join(wrong...)
}

func (r *resolution) set(s setting) error {
	if text, ok := r.given[s.flag()]; ok {
		err := r.apply(s, text)
		return option.Unless(err == nil, "--%s: %w", s.flag(), err)
	}
	text := r.env[s.env]
	if s.env == envInstance && text == "" {
		text = defaultInstance(r.env)
	}
	err := r.apply(s, text)
	err = option.Unless(err == nil, "%s: %w", s.env, err)
	if err == nil || text == "" || !s.lenient {
		return err
	}
	r.warnings = append(r.warnings, fmt.Sprintf("%v; the default %s is used", err, s.fallback))
	return r.apply(s, s.fallback)
}

// apply stores text, or the default if text is empty.
func (r *resolution) apply(s setting, text string) error {
	text = cmp.Or(text, s.fallback)
	switch {
	case text == "" && s.required:
		return fmt.Errorf("missing, set it or --%s to a %s. %s", s.flag(), s.kind, plain(s.help))
	case text == "":
		return nil
	}
	err := s.set(text)
	if err == nil {
		r.effective = append(r.effective, entry{s.env, text})
	}
	return err
}

// defaultInstance is the name of the pod, or else of the machine.
func defaultInstance(env environment) string {
	host, _ := os.Hostname() // The instance is empty without a name.
	return cmp.Or(env["POD_NAME"], env["HOSTNAME"], host)
}
