package option

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// longestName is that of a runtime, in bytes: a SPIFFE ID (SPIFFE-ID, section 2.3).
const longestName = 2048

// RuntimeName refuses names of runtimes that are blank, would forge a line of a log, or would make
// a scrape of metrics fail. All transports share it.
func RuntimeName(name string) error {
	switch {
	case strings.TrimSpace(name) == "":
		return errors.New("the name of the runtime is empty")
	case len(name) > longestName:
		return fmt.Errorf("the name of the runtime has %d bytes, want at most %d", len(name), longestName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, notPrintable):
		return errors.New("the name of the runtime has characters that cannot be printed")
	default:
		return nil
	}
}

func notPrintable(r rune) bool { return !unicode.IsPrint(r) }
