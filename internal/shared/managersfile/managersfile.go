// Package managersfile reads the file of MANAGERS_FILE.
package managersfile

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

const maxBytes = 64 << 10

// Others returns the managers of the file that are not in known. The file has one name per line.
// Empty lines and lines that begin with '#' are skipped. Others fails if known and the file
// together have more than [defaults.MaxManagers] managers.
func Others(known []core.Manager, path string) ([]core.Manager, error) {
	text, err := os.ReadFile(path) //nolint:gosec // The settings name it.
	if err != nil {
		return nil, err
	}
	if len(text) > maxBytes {
		return nil, fmt.Errorf("%s has %d bytes, want at most %d", path, len(text), maxBytes)
	}

	var managers []core.Manager
	var wrong []error

	for line := range strings.Lines(string(text)) {
		name := strings.TrimSpace(line)
		if name == "" || strings.HasPrefix(name, "#") {
			continue
		}

		manager, err := core.ParseManager(name)
		if err != nil {
			wrong = append(wrong, err)
		} else if !slices.Contains(known, manager) && !slices.Contains(managers, manager) {
			managers = append(managers, manager)
		}
	}

	if err := errors.Join(wrong...); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}

	n := len(known) + len(managers)
	return managers, option.Unless(n <= defaults.MaxManagers,
		"%s: %d managers in all, want at most %d", path, n, defaults.MaxManagers)
}
