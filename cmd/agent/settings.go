package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// errSettings means that settings are wrong. An error that wraps it names all of them.
var errSettings = errors.New("wrong settings, agent --help lists all")

const envInstance = "INSTANCE"

// setting is one flag, and the environment variable of the same name.
type setting struct {
	// env is the variable. The flag has the same name in lower case with '-' for '_'.
	env string
	// alias is another name of the variable, and of the flag. Empty: none.
	alias string
	value
	fallback string
	required bool
	// lenient makes a wrong variable a warning, and the default is used. A wrong flag stays a
	// mistake.
	lenient bool
	help    string
}

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

// alsoAs adds a name that a deployed agent may have in its Deployment.
func (s setting) alsoAs(alias string) setting {
	s.alias = alias
	return s
}

func (s setting) flag() string { return flagOf(s.env) }

func flagOf(env string) string { return strings.ReplaceAll(strings.ToLower(env), "_", "-") }

// names has the alias, too.
func (s setting) names() []string {
	if s.alias == "" {
		return []string{s.env}
	}
	return []string{s.env, s.alias}
}

// flags are the flags of names, as they are written.
func (s setting) flags() []string {
	var flags []string
	for _, env := range s.names() {
		flags = append(flags, "--"+flagOf(env))
	}
	return flags
}

// given returns the text of the setting, and the name under which it was found. It fails if the two
// names have different texts. An empty text counts as unset.
func given(names []string, find func(name string) string) (name, text string, err error) {
	for _, candidate := range names {
		found := find(candidate)
		if found == "" {
			continue
		}
		if text != "" && text != found {
			return "", "", fmt.Errorf("%s is %.64q and %s is %.64q: want one of them, or the same value in both",
				name, text, candidate, found)
		}

		name = candidate
		text = found
	}
	return cmp.Or(name, names[0]), text, nil
}

// readSettings fails with errHelp, errVersion, or with all mistakes in one error.
func readSettings(args []string, env environment) (config, error) {
	c := config{resolution: resolution{env: env}}
	err := c.resolveAll(settings(&c), args)
	if errors.Is(err, errHelp) || errors.Is(err, errVersion) {
		return config{}, err
	}

	if err := errors.Join(err, c.checkCombination()); err != nil {
		return config{}, &wrongSettings{textsOf(err), c.warnings}
	}

	c.resolveProxy()
	c.warnings = append(c.warnings, c.doubts()...)
	return c, nil
}

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

type resolution struct {
	given flags
	env   environment
	// effective are the texts of the settings that are set, also by their default.
	effective entries
	// warnings are suspicious settings. They are logged at start.
	warnings []string
}

// resolveAll takes each setting from its flag, else from its variable, else from its default. An
// empty variable counts as unset. The error is errHelp, errVersion, or names all mistakes, one per
// line.
func (r *resolution) resolveAll(all []setting, args []string) (err error) {
	r.given, err = readFlags(all, args)
	r.warnings = append(r.given.withoutEffect(), r.env.unknownSettings(all)...)
	if errors.Is(err, errHelp) || errors.Is(err, errVersion) {
		return err
	}

	wrong := []error{err}
	for _, s := range all {
		wrong = append(wrong, r.setValue(s))
	}

	return errors.Join(wrong...)
}

func (r *resolution) setValue(s setting) error {
	if r.isFlagged(s) {
		name, text, err := given(s.flags(), func(name string) string { return r.given[strings.TrimPrefix(name, "--")] })
		if err != nil {
			return err
		}

		if err := r.applyValue(s, text); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}

	name, text, err := given(s.names(), r.env.get)
	if err != nil {
		return err
	}

	if s.env == envInstance && text == "" {
		host, _ := os.Hostname() // The instance is empty without a name.
		text = cmp.Or(r.env["POD_NAME"], r.env["HOSTNAME"], host)
	}

	err = r.applyValue(s, text)
	if err == nil {
		return nil
	}

	err = fmt.Errorf("%s: %w", name, err)
	if text == "" || !s.lenient {
		return err
	}

	r.warnings = append(r.warnings, fmt.Sprintf("%v; the default %s is used", err, s.fallback))
	return r.applyValue(s, s.fallback)
}

func (r *resolution) isFlagged(s setting) bool {
	return slices.ContainsFunc(s.flags(), func(name string) bool { return r.given.has(strings.TrimPrefix(name, "--")) })
}

func (r *resolution) applyValue(s setting, text string) error {
	text = cmp.Or(text, s.fallback)
	switch {
	case text == "" && s.required:
		return fmt.Errorf("missing, set it or --%s to a %s. %s", s.flag(), s.kind, plain(s.text()))
	case text == "":
		return nil
	}

	if err := s.set(text); err != nil {
		return err
	}

	r.effective = append(r.effective, entry{s.env, text})
	return nil
}

var errHelp, errVersion = errors.New("help requested"), errors.New("version requested")

const flagVersion = "version"

type flags map[string]string

// formerFlags are accepted without effect: kyma-project/runtime-watcher takes them, and a
// Deployment that sets them must start. Each has whether it needs a value.
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

func didYouMean(name string, names []string) string {
	const shortName = 6

	most := 2
	if len(name) < shortName {
		most = 1
	}

	for edits := range most + 1 {
		for _, candidate := range names {
			if isNear(name, candidate, edits) {
				return ", did you mean " + candidate + "?"
			}
		}
	}
	return ""
}

// isNear reports whether so many insertions, deletions and replacements of bytes make b of a.
func isNear(a, b string, edits int) bool {
	for a != "" && b != "" && a[0] == b[0] {
		a = a[1:]
		b = b[1:]
	}
	if edits == 0 || a == "" || b == "" {
		return len(a)+len(b) <= edits
	}

	return isNear(a[1:], b[1:], edits-1) || isNear(a[1:], b, edits-1) || isNear(a, b[1:], edits-1)
}
