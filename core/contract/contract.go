// Package contract defines the wire contracts that an agent and a listener share: paths, media
// types, limits, and the encoding of requests and answers, for both sides. It does no I/O.
package contract

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

var (
	errUnknownVersion error = &reasons.Error{Text: "unknown contract", Label: "unknown_contract", Permanent: true}
	errMalformed      error = &reasons.Error{Text: "malformed event", Label: "malformed", Permanent: true}
)

// Version is a wire contract.
type Version string

// The wire contracts, oldest first.
const (
	// V1 carries one event with its owner.
	V1 Version = "v1"
	// V2 carries one event without an owner. The sender is the Common Name of its certificate.
	V2 Version = "v2"
	// V3 carries batches of CloudEvents 1.0 in JSON (batched content mode), with numbers that show
	// gaps, and heartbeats.
	V3 Version = "v3"
)

// traits are the properties in which the versions of the contract differ. accepted is the status
// of success.
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
			path: "event", contentType: "application/json", maxBody: 16 << 10, maxEvents: 1,
			accepted: statusOK, needsOwner: v == V1,
		}
	case V3:
		return traits{
			path: "events", contentType: "application/cloudevents-batch+json",
			maxBody: maxBatchBody, maxEvents: maxBatchEvents, accepted: statusAccepted, numbered: true,
		}
	default:
		return traits{}
	}
}

// Versions returns all contracts, oldest first.
func Versions() []Version { return []Version{V1, V2, V3} }

// ParseVersion returns the contract with that name. The error lists the known contracts.
func ParseVersion(name string) (Version, error) {
	if v := Version(name); slices.Contains(Versions(), v) {
		return v, nil
	}
	return "", unknown(name)
}

func unknown(name string) error {
	return fmt.Errorf("%w %.16q: want one of %v", errUnknownVersion, name, Versions())
}

// Path returns the escaped URL path to which a manager's events are sent with POST. The manager
// must come from [core.ParseManager]: escaping leaves ".." as it is.
func (v Version) Path(manager core.Manager) string {
	return "/" + string(v) + "/" + url.PathEscape(string(manager)) + "/" + v.traits().path
}

// ContentType returns the media type of a request's body (RFC 9110, section 8.3).
func (v Version) ContentType() string { return v.traits().contentType }

// MaxEvents returns the largest number of events in one request.
func (v Version) MaxEvents() int { return v.traits().maxEvents }

// MaxBody returns the largest size in bytes of the body of a request. A larger body is refused
// unread.
func (v Version) MaxBody() int { return v.traits().maxBody }

// Status returns the HTTP status of the answer that acknowledges all events of a request.
func (v Version) Status() int { return v.traits().accepted }

// NeedsOwner reports whether an event cannot be sent without its owner.
func (v Version) NeedsOwner() bool { return v.traits().needsOwner }

// Numbered reports whether the contract has heartbeats, and an epoch and a sequence number for each
// event.
func (v Version) Numbered() bool { return v.traits().numbered }

// RecheckAfterHeader is the header of an answer that acknowledges a request of contract v3. Its
// value is the delay of a [core.Rechecker] in whole milliseconds.
const RecheckAfterHeader = "Runtime-Watcher-Recheck-After"

// maxRecheckAfter bounds the time that a sender accepts.
const maxRecheckAfter = time.Minute

// ParseRecheckAfter returns the delay in the value of a [RecheckAfterHeader]. It returns 0 if the
// value is not a whole number of milliseconds from 1 ms to 1 min.
func ParseRecheckAfter(value string) time.Duration {
	n, err := strconv.ParseUint(value, 10, 31)
	after := time.Duration(n) * time.Millisecond
	if err != nil || after > maxRecheckAfter {
		return 0
	}
	return after
}

const (
	typeChanged   = "com.github.runtime-watcher.changed"
	typeResync    = "com.github.runtime-watcher.resync"
	typeHeartbeat = "com.github.runtime-watcher.heartbeat"
)

// The members of the data of an event that are objects.
const (
	fieldOwner      = "owner"
	fieldWatched    = "watched"
	fieldWatchedGVK = "watchedGvk"
)

const (
	specVersion    = "1.0"
	sourcePrefix   = "/runtimes/"
	maxBatchEvents = 500
	maxBatchBody   = 256 << 10
	// maxAttribute bounds the attributes of an event and the texts of a heartbeat, in bytes.
	maxAttribute = 512
)

// Bounds on the content of a heartbeat, because a listener stores it. A sender truncates its
// heartbeats to these bounds.
const (
	maxReasons      = 32
	maxFingerprints = 64
	// reasonOther is the drop reason under which a heartbeat counts those that it has no room for.
	reasonOther = core.ReasonOther
)

// heartbeatData is a heartbeat as it travels, with durations in milliseconds. It has the fields of
// [core.Heartbeat], so that each converts to the other.
type heartbeatData struct {
	ID                     string                `json:"-"`
	Time                   time.Time             `json:"-"`
	Number                 uint64                `json:"number"`
	Interval               time.Duration         `json:"intervalMs"`
	Instance               string                `json:"instance,omitempty"`
	Leaving                bool                  `json:"leaving,omitempty"`
	Sequence               uint64                `json:"sequence"`
	Pending                int64                 `json:"pending"`
	OldestPending          time.Duration         `json:"oldestPendingMs"`
	Dropped                map[core.Reason]int64 `json:"dropped,omitempty"`
	Version                string                `json:"version,omitempty"`
	CertificateFingerprint string                `json:"certificateFingerprint,omitempty"`
	CertificateExpiry      time.Time             `json:"certificateExpiry,omitzero"`
	CAFingerprints         []string              `json:"caFingerprints,omitempty"`
	KeyMaterialError       string                `json:"keyMaterialError,omitempty"`
	Canary                 core.CanaryState      `json:"canary,omitempty"`
	CanaryError            string                `json:"canaryError,omitempty"`
	WebhookError           string                `json:"webhookError,omitempty"`
	LastReview             time.Time             `json:"lastReview,omitzero"`
	WebhookFailures        int64                 `json:"webhookFailures,omitempty"`
	ConfigHash             string                `json:"configHash,omitempty"`
	ConfigError            string                `json:"configError,omitempty"`
	Interruption           core.Interruption     `json:"interruption,omitzero"`
}

// maxName is the longest name of a Kubernetes object, a DNS-1123 subdomain at most.
const maxName = 253

// The statuses of HTTP that the contracts use (RFC 9110, section 15). Core does not import
// net/http.
const (
	statusOK                    = 200
	statusAccepted              = 202
	statusMultipleChoices       = 300
	statusBadRequest            = 400
	statusUnauthorized          = 401
	statusForbidden             = 403
	statusNotFound              = 404
	statusRequestEntityTooLarge = 413
	statusUnsupportedMediaType  = 415
	statusUnprocessableContent  = 422
	statusTooManyRequests       = 429
	statusInternalServerError   = 500
	statusBadGateway            = 502
	statusServiceUnavailable    = 503
	statusGatewayTimeout        = 504
)
