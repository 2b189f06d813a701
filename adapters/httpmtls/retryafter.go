package httpmtls

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// parseRetryAfter returns the wait that Retry-After asks for, in seconds or until a date (RFC 9110,
// section 10.2.3). It is at most limit, and 0 for a missing or malformed header. A date counts from
// the Date of the answer, as clocks differ, and from now without one.
func parseRetryAfter(header http.Header, now time.Time, limit time.Duration) time.Duration {
	value := strings.TrimSpace(header.Get("Retry-After"))
	switch date, err := http.ParseTime(value); {
	case value == "":
		return 0
	case isDigits(value):
		return parseSeconds(value, limit)
	case err != nil:
		return 0
	default:
		if sent, err := http.ParseTime(header.Get("Date")); err == nil {
			now = sent
		}
		return min(max(date.Sub(now), 0), limit)
	}
}

// parseSeconds returns limit for a number that is too large for an integer.
func parseSeconds(digits string, limit time.Duration) time.Duration {
	seconds, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || seconds > int64(limit/time.Second) {
		return limit
	}
	return time.Duration(seconds) * time.Second
}

// isDigits reports whether value has only ASCII digits.
func isDigits(value string) bool {
	return strings.IndexFunc(value, func(r rune) bool { return r < '0' || r > '9' }) < 0
}
