package main

import "strings"

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
	// lenient means that a wrong variable causes a warning, and that the default is used. A wrong
	// flag remains a mistake.
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

// names returns the name and the alias.
func (s setting) names() []string {
	if s.alias == "" {
		return []string{s.env}
	}
	return []string{s.env, s.alias}
}

// flags returns the flags of names, as users write them.
func (s setting) flags() []string {
	var flags []string
	for _, env := range s.names() {
		flags = append(flags, "--"+flagOf(env))
	}
	return flags
}

// helpText returns the help, including the alias.
func (s setting) helpText() string {
	if s.alias == "" {
		return s.help
	}
	return s.help + " Alias: `" + s.alias + "`."
}

func (s setting) valueNote() string {
	switch {
	case s.required:
		return s.kind + "; required"
	case s.fallback != "":
		return s.kind + "; default " + s.fallback
	default:
		return s.kind
	}
}

func plain(text string) string { return strings.ReplaceAll(text, "`", "") }
