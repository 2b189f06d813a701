package connect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

const (
	scheme = "https"
	// maxName is the length of a DNS name in text (RFC 1035, section 2.3.4), in bytes.
	maxName = 253
)

// ParseAddress returns the URL for host, host:port or https://host:port. It refuses everything
// else. Its error repeats the address, unless the address contains credentials.
//
// All spellings of an address have the same result: see [ParseHost]. A gateway compares the host of
// a request with its routes, and answers with 404 for another spelling.
func ParseAddress(address string) (*url.URL, error) {
	full := strings.TrimSpace(address)
	if !strings.Contains(full, "://") {
		full = scheme + "://" + full
	}

	parsed, err := url.Parse(full)
	if err != nil {
		return nil, addressError(address)
	}

	// An address with any other part would differ from this one.
	bare := url.URL{Scheme: scheme, Host: parsed.Host}
	parsed.Path = strings.TrimSuffix(parsed.Path, "/")
	if parsed.Hostname() == "" || *parsed != bare || !validPort(parsed) {
		return nil, addressError(address)
	}

	host, err := ParseHost(parsed.Hostname())
	if err != nil {
		return nil, err
	}

	bare.Host = joined(host, parsed.Port())
	return &bare, nil
}

// joined returns the host and port as in a URL. A port loses its leading zeros.
func joined(host, port string) string {
	switch {
	case port != "":
		number, _ := strconv.Atoi(port) // validPort has checked it.
		return net.JoinHostPort(host, strconv.Itoa(number))
	case strings.Contains(host, ":"):
		return "[" + host + "]"
	default:
		return host
	}
}

// validPort reports whether the port is missing, or a number from 1 to 65535.
func validPort(address *url.URL) bool {
	if address.Port() == "" {
		return !strings.HasSuffix(address.Host, ":")
	}

	port, err := strconv.ParseUint(address.Port(), 10, 16)
	return err == nil && port > 0
}

// addressError does not wrap the error of [url.Parse], which repeats its input and may contain a
// password.
func addressError(address string) error {
	if strings.Contains(address, "@") {
		address = "(with credentials)"
	}
	return fmt.Errorf("%.128q: want host:port or https://host:port, without user, path or query; "+
		"an IPv6 address in brackets", address)
}

// hostPattern allows the underscore, which names in clusters may contain.
var hostPattern = regexp.MustCompile(`^` + hostLabel + `(\.` + hostLabel + `)*$`)

const hostLabel = `[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?`

// ParseHost returns the one form of a DNS name or an IP address. A name is in lower case, in ASCII
// (Punycode for Unicode, RFC 5891), and without the dot at its end. An IP address is in its
// shortest form, without brackets. Names in TLS have no dot at the end (RFC 6066, section 3), and
// neither do the routes of gateways.
func ParseHost(host string) (string, error) {
	bare := strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	address, err := netip.ParseAddr(bare)
	if err != nil { // It is a name.
		return parseName(host, bare)
	}
	return address.Unmap().String(), nil
}

// parseName returns the one form of a DNS name. Its error names the host as it was given.
func parseName(host, name string) (string, error) {
	name = strings.ToLower(strings.TrimSuffix(toASCII(name), "."))
	last := name[strings.LastIndexByte(name, '.')+1:]

	switch {
	case !isASCII(name):
		return "", fmt.Errorf("host %.128q: want it in ASCII, a name with other letters in Punycode (xn--…)", host)
	case len(name) > maxName || !hostPattern.MatchString(name):
		return "", fmt.Errorf("host %.128q: want a DNS name or an IP address", host)
	// A name never ends in a number, but an IP address in an old notation does.
	case strings.Trim(last, "0123456789") == "":
		return "", fmt.Errorf(
			"host %.128q: want an IPv4 address as four numbers up to 255, without leading zeros", host)
	default:
		return name, nil
	}
}

func isASCII(text string) bool {
	return !strings.ContainsFunc(text, func(c rune) bool { return c > '~' })
}

var errNotDialled = errors.New("only the address is needed")

// toASCII returns a DNS name in Punycode, and the name itself if it has none. The standard library
// uses its IDNA tables only in the HTTP client, so this function asks a client which host it would
// dial.
func toASCII(name string) string {
	if isASCII(name) {
		return name
	}

	ascii := name
	client := http.Transport{DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}

		ascii = host
		return nil, errNotDialled
	}}

	target := &url.URL{Scheme: "http", Host: name}
	answer, err := client.RoundTrip(&http.Request{Method: http.MethodGet, URL: target, Header: http.Header{}})
	if err != nil { // Always: no connection is made, so there is no answer.
		return ascii
	}

	_ = answer.Body.Close()
	return ascii
}
