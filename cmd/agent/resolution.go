package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
)

type resolution struct {
	given flags
	env   environment
	// effective contains the texts of the settings that are set, also by their default.
	effective entries
	// warnings describes suspicious settings. They are logged at startup.
	warnings []string
}

// resolveAll reads each setting from its flag, or else from its variable, or else from its default.
// An empty variable counts as unset. The error is errHelp or errVersion, or it names all mistakes,
// one per line.
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

// given returns the text of the setting, and the name under which it was found. It fails if two
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

// setValue reads a setting from its flag, or else from its variable.
func (r *resolution) setValue(s setting) error {
	if r.isFlagged(s) {
		return r.setFlag(s)
	}
	return r.setVariable(s)
}

func (r *resolution) setFlag(s setting) error {
	name, text, err := given(s.flags(), func(name string) string { return r.given[strings.TrimPrefix(name, "--")] })
	if err != nil {
		return err
	}

	if err := r.applyValue(s, text); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// setVariable uses the default if a lenient variable is wrong.
func (r *resolution) setVariable(s setting) error {
	name, text, err := given(s.names(), r.env.get)
	if err != nil {
		return err
	}

	if s.env == envInstance && text == "" {
		host, _ := os.Hostname() // If there is no host name, the instance is empty.
		text = cmp.Or(r.env["POD_NAME"], r.env["HOSTNAME"], host)
	}

	err = r.applyValue(s, text)
	mayDefault := s.lenient && text != ""
	switch {
	case err == nil:
		return nil
	case !mayDefault:
		return fmt.Errorf("%s: %w", name, err)
	}

	r.warnings = append(r.warnings, fmt.Sprintf("%s: %v; the default %s is used", name, err, s.fallback))
	return r.applyValue(s, s.fallback)
}

func (r *resolution) isFlagged(s setting) bool {
	return slices.ContainsFunc(s.flags(), func(name string) bool { return r.given.has(strings.TrimPrefix(name, "--")) })
}

func (r *resolution) applyValue(s setting, text string) error {
	text = cmp.Or(text, s.fallback)
	switch {
	case text == "" && s.required:
		return fmt.Errorf("missing, set it or --%s to a %s. %s", s.flag(), s.kind, plain(s.helpText()))
	case text == "":
		return nil
	}

	if err := s.set(text); err != nil {
		return err
	}

	r.effective = append(r.effective, entry{s.env, text})
	return nil
}

type entry struct{ env, text string }

type entries []entry

// LogValue shows the settings in their order. No setting is a secret: the log contains only the
// names of files.
func (all entries) LogValue() slog.Value {
	attrs := make([]slog.Attr, 0, len(all))
	for _, e := range all {
		attrs = append(attrs, slog.String(strings.ToLower(e.env), e.text))
	}
	return slog.GroupValue(attrs...)
}
