// Package xfcc reads the X-Forwarded-Client-Cert header, in which a proxy that terminates TLS
// describes its client.
//
// The format is Envoy's ("HTTP header manipulation", section x-forwarded-client-cert). Elements are
// separated by commas, one for each proxy on the path. An element contains key=value pairs,
// separated by semicolons. A value with a separator is in double quotes, in which a backslash
// escapes the next character. Cert and Chain are PEM in percent-encoding.
//
// Envoy does not quote URI and DNS, and writes them behind all other keys. Their text comes from
// the client's certificate. Any text behind such a value may be part of the value.
//
// The package only reads. The caller decides which proxy may write the header, which element
// counts, and whether a certificate is valid.
package xfcc

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

const (
	// MaxSize is the largest header that is read, in bytes over all its lines.
	MaxSize = 32 << 10
	// MaxElements is the largest number of elements that is read.
	MaxElements = 16
	// maxChain bounds the certificates of a chain. Real ones have two or three.
	maxChain = 10
)

var (
	// ErrTooLarge means that a header is larger than [MaxSize].
	ErrTooLarge = fmt.Errorf("header is larger than %d bytes", MaxSize)
	// ErrMalformed means that a header does not follow the format.
	ErrMalformed = errors.New("malformed header")
	// ErrNoCertificate means that an element has neither Cert nor Chain.
	ErrNoCertificate = errors.New("no certificate")
	// ErrMalformedCertificate means that Cert or Chain are not certificates in percent-encoded PEM.
	ErrMalformedCertificate = errors.New("malformed certificate")
	// ErrHashMismatch means that Hash is not the SHA-256 of the certificate.
	ErrHashMismatch = errors.New("hash is not that of the certificate")
)

// Parse returns the elements of a header in the order in which proxies added them. A quoted value
// ends on its line. Errors wrap [ErrTooLarge] or [ErrMalformed]. Errors name the position and never
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
		elements, err = parseLine(elements, line)
		if err != nil {
			return nil, err
		}
	}
	return elements, nil
}

// unescape resolves \" and \\. Other escapes belong to the notation of the subject, and stay.
var unescape = strings.NewReplacer(`\\`, `\`, `\"`, `"`)

// parseLine appends the elements of a line. It refuses text that another parser could read
// differently.
func parseLine(elements []Element, line string) ([]Element, error) {
	var e Element
	one := map[string]*string{"hash": &e.Hash, "cert": &e.Cert, "chain": &e.Chain, "subject": &e.Subject}
	lists := map[string]*[]string{"uri": &e.URIs, "dns": &e.DNS}
	seen := make(map[string]bool)

	open := false // A value may go on: it is a SAN without quotes.
	for rest := line; ; {
		key, value, behind, isPair := cutPair(rest)
		isEnded := behind == "" || behind[0] == ',' || behind[0] == ';'
		if !isPair || !isEnded {
			return nil, fmt.Errorf("%w: no key with a value at byte %d of a line", ErrMalformed, len(line)-len(rest))
		}

		field := one[key]
		list := lists[key]
		switch { // Keys that are not known are ignored: the format can grow.
		case seen[key]:
			return nil, fmt.Errorf("%w: %s twice in one element", ErrMalformed, key)
		case open && isField(field, key):
			return nil, fmt.Errorf("%w: %s follows an unquoted SAN and may be part of that SAN", ErrMalformed, key)
		case open && list == nil:
			e.Trailing = true
		case field != nil:
			*field = value
			seen[key] = true
		case list != nil && value != "": // Proxies write an empty value when a certificate has no such SAN.
			*list = append(*list, value)
			open = open || !isQuoted(rest)
		}

		if strings.HasPrefix(behind, ";") {
			rest = behind[1:]
			continue
		}

		if len(elements) == MaxElements {
			return nil, fmt.Errorf("%w: more than %d elements", ErrMalformed, MaxElements)
		}

		elements = append(elements, e)
		if behind == "" {
			return elements, nil
		}

		e = Element{} // The next element begins behind the comma.
		rest = behind[1:]
		open = false
		clear(seen)
	}
}

// isField reports whether a key names a field, and not a SAN.
func isField(field *string, key string) bool { return field != nil || key == "by" }

// isQuoted reports whether the value of the first pair is in quotes.
func isQuoted(text string) bool {
	_, value, _ := strings.Cut(text, "=")
	return strings.HasPrefix(strings.TrimLeft(value, space), `"`)
}

const space = " \t"

// cutPair returns the first key in lower case, its value, and the text behind them.
func cutPair(text string) (key, value, behind string, ok bool) {
	key, text, ok = strings.Cut(text, "=")
	key = strings.Trim(key, space)
	text = strings.TrimLeft(text, space)
	if !ok || key == "" || strings.ContainsFunc(key, notInKey) {
		return "", "", "", false
	}

	unquoted, isQuoted := strings.CutPrefix(text, `"`)
	if isQuoted {
		value, behind, ok = cutQuoted(unquoted)
		return strings.ToLower(key), value, strings.TrimLeft(behind, space), ok
	}

	end := strings.IndexAny(text, ",;")
	if end < 0 {
		end = len(text)
	}
	value = strings.TrimRight(text[:end], space)
	behind = text[end:]
	ok = !strings.ContainsFunc(value, func(c rune) bool { return c == '"' || isControl(c) })
	return strings.ToLower(key), value, behind, ok
}

func cutQuoted(text string) (value, behind string, ok bool) {
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '"':
			return unescape.Replace(text[:i]), text[i+1:], true
		case c == '\\':
			i++ // Skip the escaped character. At the end of the line, the quote stays open.
		case isControl(rune(c)):
			return "", "", false
		}
	}
	return "", "", false
}

func notInKey(c rune) bool {
	lower := c | 0x20
	isLetter := 'a' <= lower && lower <= 'z'
	isDigit := '0' <= c && c <= '9'
	isJoint := c == '-' || c == '_'
	return !isLetter && !isDigit && !isJoint
}

func isControl(c rune) bool {
	const del = 0x7f
	isLow := c < ' ' && c != '\t'
	return isLow || c == del
}

// Element is the description of a client by one proxy. Fields that the proxy did not send are
// empty.
type Element struct {
	// Hash is the SHA-256 of the client certificate in hex, as written.
	Hash string
	// Cert is the client certificate, and Chain is that certificate with the other certificates of
	// its chain, both in percent-encoded PEM.
	Cert, Chain string
	// Subject is the subject of the client certificate (RFC 4514), in which only \" and \\ are
	// unescaped. The client chooses its text.
	Subject string
	// URIs and DNS are SANs of the client certificate. Without quotes, a semicolon in a SAN splits
	// it into two SANs, or into a SAN and a key.
	URIs, DNS []string
	// Trailing means that an unknown key follows a SAN without quotes.
	Trailing bool
}

// Certificates returns the client certificate and the other certificates of its chain. The client
// certificate is Cert, or the first of Chain if Cert is empty. If Hash is set, Certificates
// compares it with the certificate, and checks nothing else.
func (e *Element) Certificates() (leaf *x509.Certificate, chain []*x509.Certificate, err error) {
	chain, err = decode("Chain", e.Chain, maxChain)
	if err != nil {
		return nil, nil, err
	}

	certs, err := decode("Cert", e.Cert, 1)
	switch {
	case err != nil:
		return nil, nil, err
	case len(certs) > 0:
		leaf = certs[0]
	case len(chain) > 0:
		leaf = chain[0]
		chain = chain[1:]
	default:
		return nil, nil, ErrNoCertificate
	}
	return leaf, chain, e.checkHash(leaf)
}

func (e *Element) checkHash(leaf *x509.Certificate) error {
	if e.Hash == "" {
		return nil
	}

	want := sha256.Sum256(leaf.Raw)
	have, err := hex.DecodeString(e.Hash)
	if err != nil || subtle.ConstantTimeCompare(have, want[:]) == 0 {
		return ErrHashMismatch
	}
	return nil
}

// spaces undoes the escaping of a query in the lines around a certificate. A plus between them is a
// character of Base64.
var spaces = strings.NewReplacer(
	"-----BEGIN+CERTIFICATE-----", "-----BEGIN CERTIFICATE-----",
	"-----END+CERTIFICATE-----", "-----END CERTIFICATE-----",
)

// decode returns the certificates in escaped, at most limit. It returns none if escaped is empty.
func decode(key, escaped string, limit int) ([]*x509.Certificate, error) {
	// Not QueryUnescape: not every proxy escapes a plus of Base64.
	text, err := url.PathUnescape(escaped)
	if err != nil {
		return nil, fmt.Errorf("%w: %s is not percent-encoded", ErrMalformedCertificate, key)
	}

	var certs []*x509.Certificate
	for rest := []byte(strings.TrimSpace(spaces.Replace(text))); len(rest) > 0; {
		if len(certs) == limit {
			return nil, fmt.Errorf("%w: %s contains more certificates than the limit of %d",
				ErrMalformedCertificate, key, limit)
		}

		var cert *x509.Certificate
		cert, rest, err = next(rest)
		if err != nil {
			return nil, fmt.Errorf("%w: %s holds %w", ErrMalformedCertificate, key, err)
		}
		certs = append(certs, cert)
	}
	return certs, nil
}

var errNoPEM = errors.New("no certificate in PEM")

// next reads one certificate. Unlike [pem.Decode], it does not search for one behind other text.
func next(text []byte) (*x509.Certificate, []byte, error) {
	if !bytes.HasPrefix(text, []byte("-----BEGIN CERTIFICATE-----")) {
		return nil, nil, errNoPEM
	}

	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" || len(block.Headers) > 0 {
		return nil, nil, errNoPEM
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("no valid certificate: %w", err)
	}
	return cert, bytes.TrimSpace(rest), nil
}
