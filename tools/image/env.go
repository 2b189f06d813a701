package main

import (
	"fmt"
	"os"
	"strings"
)

// readEnv returns the variables of a file, none for an empty path. It skips empty lines and those
// that begin with '#'.
func readEnv(path string) (env []string, err error) {
	if path == "" {
		return nil, nil
	}

	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}

	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if name, _, ok := strings.Cut(line, "="); !ok || name == "" {
			return nil, fmt.Errorf("%s: want NAME=value, have %q", path, line)
		}

		env = append(env, line)
	}

	return env, nil
}
