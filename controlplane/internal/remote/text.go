package remote

import (
	"crypto/sha256"
	"iter"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
	"github.com/runtime-watcher/runtime-watcher/internal/shorttext"
)

const (
	// MaxNote is the longest note of an Event (events.k8s.io/v1), in bytes.
	MaxNote = 1000
	// maxToken bounds a word that is kept, in bytes.
	maxToken = 64
)

// Text cuts a text after 4,000 bytes.
func Text(text string) string { return shorttext.Cut(text, shorttext.Most) }

// TextOf cuts a text after most bytes and replaces the rest with an ellipsis. The result does not
// keep the text in memory.
func TextOf(text string, most int) string { return shorttext.Cut(text, most) }

// Error returns err, or an error with a bounded text that wraps err.
func Error(err error) error { return shorttext.Error(err) }

// Managers returns the valid names without duplicates. It returns at most 100 names, which is the
// limit of an agent.
func Managers(names iter.Seq[string]) (managers []core.Manager) {
	known := make(map[core.Manager]bool)
	for name := range names {
		manager, err := core.ParseManager(name)
		if err != nil || known[manager] {
			continue
		}
		if len(managers) == defaults.MaxManagers {
			break
		}

		known[manager] = true
		managers = append(managers, core.Manager(strings.Clone(name)))
	}
	return managers
}

// Token returns a copy of text that is safe to keep, or "" if text is longer than any token that
// this project writes.
func Token(text string) string {
	if len(text) > maxToken {
		return ""
	}
	return strings.Clone(text)
}

// Sum identifies texts without keeping them.
func Sum(texts ...string) [sha256.Size]byte {
	sum := sha256.New()
	for _, text := range texts {
		part := sha256.Sum256([]byte(text))
		sum.Write(part[:])
	}
	return [sha256.Size]byte(sum.Sum(nil))
}
