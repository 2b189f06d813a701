package connect

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

const (
	scheme  = "https"
	maxPort = 1<<16 - 1
)

// ParseAddress returns the URL for host, host:port or https://host:port. It refuses all else. Its
// error repeats the address, unless that has credentials.
func ParseAddress(address string) (*url.URL, error) {
	full := address
	if !strings.Contains(address, "://") {
		full = scheme + "://" + address
	}
	parsed, err := url.Parse(full)
	if err != nil {
		return nil, addressError(address)
	}

	// An address with anything else would differ from this one.
	bare := url.URL{Scheme: scheme, Host: parsed.Host}
	parsed.Path = strings.TrimSuffix(parsed.Path, "/")
	if parsed.Hostname() == "" || *parsed != bare || !validPort(parsed) {
		return nil, addressError(address)
	}
	return &bare, nil
}

// validPort reports whether the port is missing, or a number from 1 to 65535.
func validPort(address *url.URL) bool {
	if address.Port() == "" {
		return !strings.HasSuffix(address.Host, ":")
	}
	port, err := strconv.Atoi(address.Port())
	return err == nil && port > 0 && port <= maxPort
}

// addressError does not wrap the error of [url.Parse], which repeats its input and may contain a
// password.
func addressError(address string) error {
	if strings.Contains(address, "@") {
		address = "(with credentials)"
	}
	return fmt.Errorf("%.128q: want host:port or https://host:port, without user, path or query", address)
}
