package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// help is what --help prints.
func help() string {
	var out strings.Builder

	out.WriteString("Agent tells operators in a control plane (KCP) of changes in this runtime.\n\n" +
		"usage: agent [--flag=value ...]\n\n" +
		"Every flag has an environment variable; the flag wins. An empty variable is as good as none.\n\n")

	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0) //nolint:mnd // Two spaces between columns.
	for _, s := range settings() {
		fmt.Fprintf(table, "  --%s\t%s\t%s%s\n", s.flag(), s.env, strings.ReplaceAll(s.help, "`", ""), s.note())
	}

	fmt.Fprintf(table, "  --version\t\tPrint the version and exit\n")
	fmt.Fprintf(table, "  --help\t\tPrint this and exit\n")

	_ = table.Flush() // To a string.

	return out.String()
}

// note says what a value looks like and what it is without.
func (s setting) note() string {
	switch {
	case s.required:
		return fmt.Sprintf(" (%s; required)", s.kind)
	case s.fallback != "":
		return fmt.Sprintf(" (%s; default %s)", s.kind, s.fallback)
	default:
		return fmt.Sprintf(" (%s)", s.kind)
	}
}

// markdown is the table of the documentation.
func markdown() string {
	var out strings.Builder

	out.WriteString("| variable | flag | value | default | meaning |\n| --- | --- | --- | --- | --- |\n")

	for _, s := range settings() {
		fallback := ""

		switch {
		case s.required:
			fallback = "**required**"
		case s.fallback != "":
			fallback = "`" + s.fallback + "`"
		}

		fmt.Fprintf(&out, "| `%s` | `--%s` | %s | %s | %s |\n", s.env, s.flag(), s.kind, fallback, s.help)
	}

	return out.String()
}
