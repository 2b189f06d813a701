package main

import (
	"fmt"
	"io"
	"strings"
)

const usage = `The agent runs in a runtime (SKR), as a webhook or as an informer. It reports changes of watched
objects to the operators in the control plane (KCP).

Usage: agent [--flag=value ...]
       agent check [--flag=value ...]           checks the set-up, and changes nothing
       agent debug [--pid=1]                    logs at level debug for 10 minutes
       agent webhook-configuration [--flag ...] prints the webhook configuration

Each setting is a flag and an environment variable. A flag wins over its variable. An empty variable
counts as unset.
`

const helpWidth = 100

func help() string {
	var out strings.Builder
	out.WriteString(usage)

	for _, g := range groups(new(config)) {
		fmt.Fprintf(&out, "\n%s:\n", g.title)
		for _, s := range g.settings {
			fmt.Fprintf(&out, "  --%s, %s  (%s)\n%s", s.flag(), s.env, s.valueNote(), wrap(plain(s.helpText()), "        "))
		}
	}

	out.WriteString("\nOther flags:\n  --version  Print the version and exit.\n  --help     Print this text and exit.\n")
	return out.String()
}

// wrap breaks text into lines that begin with indent and are not longer than helpWidth.
func wrap(text, indent string) string {
	var out strings.Builder
	line := indent
	for word := range strings.FieldsSeq(text) {
		if len(line)+len(word) > helpWidth {
			out.WriteString(strings.TrimRight(line, " ") + "\n")
			line = indent
		}
		line += word + " "
	}

	out.WriteString(strings.TrimRight(line, " ") + "\n")
	return out.String()
}

func printTo(w io.Writer, text string) error {
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
