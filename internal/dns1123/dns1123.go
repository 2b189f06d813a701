// Package dns1123 checks the forms of names in Kubernetes (RFC 1123, section 2.1, as Kubernetes
// narrows it), and of labels and annotations.
package dns1123

import (
	"regexp"
	"strings"
)

// MaxLabel and MaxSubdomain are the largest lengths in bytes (RFC 1035, section 2.3.4).
const (
	MaxLabel     = 63
	MaxSubdomain = 253
)

// IsLabel reports whether name has 1 to 63 of the characters a-z, 0-9 and '-', and neither begins
// nor ends with '-'.
func IsLabel(name string) bool { return isPart(name) && len(name) <= MaxLabel }

// IsSubdomain reports whether name has at most 253 bytes and consists of parts joined by dots. It
// allows parts longer than a label, as Kubernetes does.
func IsSubdomain(name string) bool {
	for part := range strings.SplitSeq(name, ".") {
		if !isPart(part) {
			return false
		}
	}
	return len(name) <= MaxSubdomain
}

func isPart(text string) bool {
	hasHyphenAtEnd := strings.HasPrefix(text, "-") || strings.HasSuffix(text, "-")
	return text != "" && !hasHyphenAtEnd && strings.IndexFunc(text, isForeign) < 0
}

func isForeign(r rune) bool {
	isLetter := r >= 'a' && r <= 'z'
	isDigit := r >= '0' && r <= '9'
	return !isLetter && !isDigit && r != '-'
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)

// IsName reports whether text can be the value of a label that is not empty, or the name of a label
// or an annotation without its prefix.
func IsName(text string) bool { return namePattern.MatchString(text) }

// IsQualifiedName reports whether key can be a label or an annotation:
// [<DNS-1123 subdomain>/]<name>.
func IsQualifiedName(key string) bool {
	prefix, name, hasPrefix := strings.Cut(key, "/")
	if !hasPrefix {
		return IsName(key)
	}
	return IsSubdomain(prefix) && IsName(name)
}
