package xfcc

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	// MaxSize is the largest header that is read, in bytes over all its lines.
	MaxSize = 32 << 10
	// MaxElements is the largest number of elements that is read.
	MaxElements = 16
)

var (
	// ErrTooLarge means that a header is larger than [MaxSize].
	ErrTooLarge = fmt.Errorf("header is larger than %d bytes", MaxSize)
	// ErrMalformed means that a header does not follow the format.
	ErrMalformed = errors.New("malformed header")
)

// Parse returns the elements of a header in the order in which proxies added them. A quoted value
// ends on its line. Errors wrap [ErrTooLarge] or [ErrMalformed]. They name the position, and never
// quote the header. Parse refuses a header that two readers might read in two ways.
func Parse(lines []string) ([]Element, error) {
	size := 0
	for _, line := range lines {
		size += len(line)
	}
	if size > MaxSize {
		return nil, ErrTooLarge
	}
	var elements []Element
	for _, line := range lines {
		var err error
		if elements, err = parseLine(elements, line); err != nil {
			return nil, err
		}
	}
	return elements, nil
}

func parseLine(elements []Element, line string) ([]Element, error) {
	s := scanner{text: line}
	for {
		if len(elements) == MaxElements {
			return nil, fmt.Errorf("%w: more than %d elements", ErrMalformed, MaxElements)
		}
		element, err := s.element()
		if err != nil {
			return nil, err
		}
		elements = append(elements, element)
		if !s.skip(',') {
			return elements, s.end()
		}
	}
}

// scanner reads one line from left to right.
type scanner struct {
	text string
	pos  int
}

func (s *scanner) element() (Element, error) {
	var b builder
	for {
		key, err := s.key()
		if err != nil {
			return Element{}, err
		}
		value, err := s.value()
		if err != nil {
			return Element{}, err
		}
		if !b.set(key, value) {
			return Element{}, s.malformed(key + " twice in one element")
		}
		if !s.skip(';') {
			return b.element, nil
		}
	}
}

// key reads up to and with the equals sign, and returns the key in lower case.
func (s *scanner) key() (string, error) {
	s.space()
	start := s.pos
	for s.pos < len(s.text) && isKey(s.text[s.pos]) {
		s.pos++
	}
	key := s.text[start:s.pos]
	if key == "" {
		return "", s.malformed("no key")
	}
	if !s.skip('=') {
		return "", s.malformed("no '=' behind a key")
	}
	return strings.ToLower(key), nil
}

func (s *scanner) value() (string, error) {
	s.space()
	if s.pos < len(s.text) && s.text[s.pos] == '"' {
		return s.quoted()
	}
	start := s.pos
	for ; s.pos < len(s.text) && s.text[s.pos] != ',' && s.text[s.pos] != ';'; s.pos++ {
		if c := s.text[s.pos]; c == '"' || isControl(c) {
			return "", s.malformed("a quote or control character in an unquoted value")
		}
	}
	return strings.TrimRight(s.text[start:s.pos], " \t"), nil
}

// quoted reads a value between quotes. The caller checks that a separator or the end follows.
func (s *scanner) quoted() (string, error) {
	s.pos++
	start, escapes := s.pos, false
	for ; s.pos < len(s.text); s.pos++ {
		switch c := s.text[s.pos]; {
		case c == '"':
			value := s.text[start:s.pos]
			s.pos++
			return unescape(value, escapes), nil
		case c == '\\':
			escapes = true
			s.pos++ // Skip the escaped character. At the end of the line, the quote stays open.
		case isControl(c):
			return "", s.malformed("a control character")
		}
	}
	return "", s.malformed("no closing quote")
}

// unescape resolves \" and \\. Other escapes belong to the notation of the subject, and stay.
func unescape(value string, escapes bool) string {
	if !escapes {
		return value
	}
	return strings.NewReplacer(`\\`, `\`, `\"`, `"`).Replace(value)
}

// skip goes past a separator and the space before it, and reports whether it was there.
func (s *scanner) skip(separator byte) bool {
	s.space()
	if s.pos == len(s.text) || s.text[s.pos] != separator {
		return false
	}
	s.pos++
	return true
}

func (s *scanner) end() error {
	if s.pos < len(s.text) {
		return s.malformed("neither ',' nor ';' behind a value")
	}
	return nil
}

func (s *scanner) space() {
	for s.pos < len(s.text) && (s.text[s.pos] == ' ' || s.text[s.pos] == '\t') {
		s.pos++
	}
}

func (s *scanner) malformed(fault string) error {
	return fmt.Errorf("%w: %s at byte %d of a line", ErrMalformed, fault, s.pos)
}

func isKey(c byte) bool {
	return 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

func isControl(c byte) bool { return c < ' ' && c != '\t' || c == 0x7f }

// Element is the description of a client by one proxy. Fields that the proxy did not send are
// empty.
type Element struct {
	// By are the URI SANs of the proxy's own certificate.
	By []string
	// Hash is the SHA-256 of the client certificate in hex, as written.
	Hash string
	// Cert is the client certificate, Chain the same with the others of its chain, in
	// percent-encoded PEM.
	Cert, Chain string
	// Subject is the subject of the client certificate (RFC 4514), in which only \" and \\ are
	// unescaped. Its text is the client's choice.
	Subject string
	// URIs and DNS are SANs of the client certificate.
	URIs, DNS []string
}

// builder collects the pairs of one element.
type builder struct {
	element Element
	seen    []string
}

// set keeps the value of a key. It reports false for a second value of a key that may have only
// one.
func (b *builder) set(key, value string) bool {
	if list := b.list(key); list != nil {
		// Proxies write an empty value when a certificate has no such SAN.
		if value != "" {
			*list = append(*list, value)
		}
		return true
	}
	field := b.field(key)
	if field == nil {
		return true // An unknown key: the format can grow.
	}
	if slices.Contains(b.seen, key) {
		return false
	}
	*field, b.seen = value, append(b.seen, key)
	return true
}

func (b *builder) field(key string) *string {
	switch key {
	case "hash":
		return &b.element.Hash
	case "cert":
		return &b.element.Cert
	case "chain":
		return &b.element.Chain
	case "subject":
		return &b.element.Subject
	default:
		return nil
	}
}

func (b *builder) list(key string) *[]string {
	switch key {
	case "by":
		return &b.element.By
	case "uri":
		return &b.element.URIs
	case "dns":
		return &b.element.DNS
	default:
		return nil
	}
}
