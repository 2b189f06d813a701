package xfcc

import (
	"errors"
	"fmt"
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
			if s.pos < len(s.text) {
				return nil, s.malformed("neither ',' nor ';' behind a value")
			}
			return elements, nil
		}
	}
}

// scanner reads one line from left to right.
type scanner struct {
	text string
	pos  int
}

func (s *scanner) element() (Element, error) {
	var e Element
	one := map[string]*string{"hash": &e.Hash, "cert": &e.Cert, "chain": &e.Chain, "subject": &e.Subject}
	lists := map[string]*[]string{"by": &e.By, "uri": &e.URIs, "dns": &e.DNS}
	for {
		key, err := s.key()
		if err != nil {
			return Element{}, err
		}
		value, err := s.value()
		if err != nil {
			return Element{}, err
		}
		field, known := one[key] // Keys that are not known are ignored: the format can grow.
		switch list := lists[key]; {
		case known && field == nil:
			return Element{}, s.malformed(key + " twice in one element")
		case known:
			*field, one[key] = value, nil
		case list != nil && value != "": // Proxies write an empty value when a certificate has no such SAN.
			*list = append(*list, value)
		}
		if !s.skip(';') {
			return e, nil
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
			if escapes {
				value = unescape.Replace(value)
			}
			return value, nil
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
var unescape = strings.NewReplacer(`\\`, `\`, `\"`, `"`)

// skip goes past a separator and the space before it, and reports whether it was there.
func (s *scanner) skip(separator byte) bool {
	s.space()
	if s.pos == len(s.text) || s.text[s.pos] != separator {
		return false
	}
	s.pos++
	return true
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
