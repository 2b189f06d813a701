// Package identity has the rule for the names of runtimes that all transports share.
package identity

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// longest is the length of the longest name, in bytes: that of a SPIFFE ID (SPIFFE-ID, section 2.3).
const longest = 2048

// Check refuses names that are blank, would forge a line of a log, or would make a scrape of
// metrics fail.
func Check(name string) error {
	switch {
	case strings.TrimSpace(name) == "":
		return errors.New("the name of the runtime is empty")
	case len(name) > longest:
		return fmt.Errorf("the name of the runtime has %d bytes, want at most %d", len(name), longest)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, notPrintable):
		return errors.New("the name of the runtime has characters that cannot be printed")
	default:
		return nil
	}
}

func notPrintable(r rune) bool { return !unicode.IsPrint(r) }
