package admission

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Hooks are optional callbacks of a handler. They are called concurrently while the API server
// waits, and must return at once. A panic in a hook is recovered and reported to Panicked.
type Hooks struct {
	// InFlight is called with 1 when a request begins, and with -1 when it has ended.
	InFlight func(delta int)
	// Reviewed is called for each answered review. took is the time from the beginning of the
	// request, before its body is read, to the answer. The write is allowed with each decision:
	//
	//   - "accepted", "coalesced", "dropped": the outcome of the acceptor (see [core.Outcome])
	//   - "unchanged": an update did not change the watched part of the object
	//   - "irrelevant": the filter refuses a write that is no update
	//   - "dry_run": the write is not persisted
	//   - "no_owner": the object has no valid owner, but an owner is required
	//   - "no_name": the object has no name, or one that is too long for an event. An update or a
	//     deletion that names no object at all is accepted as a resync instead
	//   - "unread": there was no memory to read the review; a resync is accepted instead
	//   - "failed": something panicked, see the log; a resync is accepted instead
	Reviewed func(manager core.Manager, decision string, took time.Duration)
	// Refused is called for each request that is answered with another status than 200. reason is a
	// label of bounded cardinality:
	//
	//   - "unknown_path", "method": not POST /validate/<manager>
	//   - "manager": an invalid manager, or one that [Options.Serves] refuses
	//   - "media_type": not plain application/json
	//   - "too_large", "unreadable_body": the body is above the limit, or did not arrive
	//   - "busy": no memory for the body
	//   - "malformed_review", "unsupported_version": not a review of admission.k8s.io/v1
	//   - "internal": a panic
	Refused func(status int, reason string, took time.Duration)
	// OwnerProblem is called with "malformed" for an owner annotation that is not
	// <namespace>/<name>. It is called with "missing" for an object without owner if
	// [Options.RequireOwner] is set.
	OwnerProblem func(manager core.Manager, problem string)
	// Panicked is called for each recovered panic, with its place:
	//
	//   - "filter": in a filter; the change matters
	//   - "acceptor": in the acceptor, or in a hook before it; a resync is accepted
	//   - "request": while the request was read, which is answered 500
	//   - "hooks": in another hook, or in a logger after the answer
	Panicked func(place string)
}
