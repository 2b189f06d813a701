// Package contract holds the wire contracts that an agent and a listener share: the paths, the media types, the limits,
// and how events are written and read. It knows bytes, not HTTP.
package contract

import (
	"fmt"
	"net/url"
	"slices"

	"github.com/runtime-watcher/runtime-watcher/core"
)

var (
	// ErrUnknownVersion means that a contract is none of those that this package knows. It is permanent.
	ErrUnknownVersion error = &sentinel{text: "unknown contract", reason: "unknown_contract"}
	// ErrMalformed means that a body, or an event, is not what its contract says. It is permanent.
	ErrMalformed error = &sentinel{text: "malformed event", reason: "malformed"}
	// ErrTooLarge means that events do not fit into one request. Fewer may.
	ErrTooLarge error = &sentinel{text: "too large for one request", reason: "too_large"}
)

// sentinel is an error that is compared by identity. No attempt at the same can succeed.
type sentinel struct{ text, reason string }

func (s *sentinel) Error() string   { return s.text }
func (s *sentinel) Reason() string  { return s.reason }
func (s *sentinel) Retryable() bool { return false }

// Version is a wire contract.
type Version string

// The wire contracts, oldest first.
const (
	// V1 carries one event with its owner, as deployed today.
	V1 Version = "v1"
	// V2 carries one event without owner: the sender is the Common Name of its certificate.
	V2 Version = "v2"
	// V3 carries batches of CloudEvents 1.0 in JSON (batched content mode), with heartbeats, and numbers that show gaps.
	V3 Version = "v3"
)

// traits are what makes a contract.
type traits struct {
	path        string
	contentType string
	maxBody     int
	maxEvents   int
	accepted    int
	needsOwner  bool
	numbered    bool
}

func (v Version) traits() traits {
	switch v {
	case V1, V2:
		return traits{
			path: "event", contentType: "application/json", maxBody: 16 << 10, maxEvents: 1, accepted: statusOK, needsOwner: v == V1,
		}
	case V3:
		return traits{
			path: "events", contentType: "application/cloudevents-batch+json", maxBody: maxBatchBody, maxEvents: maxBatchEvents,
			accepted: statusAccepted, numbered: true,
		}
	default:
		return traits{}
	}
}

// The statuses of HTTP that acknowledge (RFC 9110, section 15.3).
const (
	statusOK       = 200
	statusAccepted = 202
)

// Versions returns all contracts, oldest first.
func Versions() []Version { return []Version{V1, V2, V3} }

// ParseVersion returns the contract of that name, or an error that wraps [ErrUnknownVersion] and lists those there are.
func ParseVersion(name string) (Version, error) {
	if v := Version(name); slices.Contains(Versions(), v) {
		return v, nil
	}

	return "", unknown(name)
}

func unknown(name string) error {
	return fmt.Errorf("%w %.16q: want one of %v", ErrUnknownVersion, name, Versions())
}

// Path returns the URL path, escaped, that a manager's events are sent to with POST. The manager must come from
// [core.ParseManager]: escaping takes the meaning from slashes, but not from "..".
func (v Version) Path(manager core.Manager) string {
	return "/" + string(v) + "/" + url.PathEscape(string(manager)) + "/" + v.traits().path
}

// ContentType returns the media type of a request's body (RFC 9110, section 8.3).
func (v Version) ContentType() string { return v.traits().contentType }

// MaxEvents returns how many events one request can carry.
func (v Version) MaxEvents() int { return v.traits().maxEvents }

// MaxBody returns the size in bytes beyond which a request's body is refused unread.
func (v Version) MaxBody() int { return v.traits().maxBody }

// Status returns the HTTP status of an answer that acknowledges every event of a request.
func (v Version) Status() int { return v.traits().accepted }

// NeedsOwner reports whether an event can not be sent without its owner.
func (v Version) NeedsOwner() bool { return v.traits().needsOwner }

// Numbered reports whether events travel with an epoch and a sequence, and with heartbeats.
func (v Version) Numbered() bool { return v.traits().numbered }

// Encode returns the body that carries events, between 1 and [Version.MaxEvents] of them. It fails on events that the
// contract can not carry, with an error that wraps [ErrMalformed], and with one that wraps [ErrTooLarge] when several events together
// are larger than [Version.MaxBody]. What it returns, [Version.Decode] accepts.
func (v Version) Encode(events []core.WatchEvent) ([]byte, error) {
	switch n, most := len(events), v.MaxEvents(); {
	case most == 0:
		return nil, unknown(string(v))
	case n == 0 || n > most:
		return nil, fmt.Errorf("%w: contract %s carries 1 to %d events, have %d", ErrMalformed, v, most, n)
	case v == V3:
		return encodeBatch(events)
	default:
		return encodeSingle(v, &events[0])
	}
}

// Decode returns the events that a body carries. Fields that it does not know are ignored, so that a contract can grow.
// The error wraps [ErrMalformed] and names what is wrong and what is expected.
func (v Version) Decode(body []byte) ([]core.WatchEvent, error) {
	switch most := v.MaxBody(); {
	case most == 0:
		return nil, unknown(string(v))
	case len(body) > most:
		return nil, fmt.Errorf("%w: %d bytes, want at most %d", ErrMalformed, len(body), most)
	case v == V3:
		return decodeBatch(body)
	}

	event, err := decodeSingle(v, body)
	if err != nil {
		return nil, err
	}

	return []core.WatchEvent{event}, nil
}
