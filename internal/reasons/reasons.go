// Package reasons contains the reasons for which requests and events are refused: metric labels,
// and the "reason" in answers. docs/reference/metrics.md lists them.
package reasons

// The reasons of a listener: metric labels at its end, and the "reason" of its answers.
const (
	// NotFound means that the path belongs to no contract (404).
	NotFound = "not_found"
	// Method means that the method is not POST (405).
	Method = "method_not_allowed"
	// UnknownManager means that the listener does not serve the manager, or does not serve it yet
	// (404).
	UnknownManager = "unknown_manager"
	// MediaType means that the body does not have the contract's media type (415).
	MediaType = "unsupported_media_type"
	// TooLarge means that the body is larger than the contract allows (413).
	TooLarge = "too_large"
	// Malformed means that the body does not follow the contract (400).
	Malformed = "malformed"
	// Unreadable means that the body did not arrive completely (503).
	Unreadable = "unreadable_body"
	// Unauthenticated is the answer to a sender without identity, for any cause (401).
	Unauthenticated = "unauthenticated"
	// NotReady means that the listener, the verifier or the handler cannot accept events yet (503).
	NotReady = "not_ready"
	// Busy means that too many requests are in flight (503).
	Busy = "busy"
	// ShuttingDown means that the listener is about to stop (503).
	ShuttingDown = "shutting_down"
	// TooFast means that the runtime has used up its share (429; 503 on contracts v1 and v2).
	TooFast = "too_fast"
	// Partial means that individual elements of a request were refused (422).
	Partial = "partial"
	// SourceMismatch means that the sender claims to be a runtime other than the runtime of its
	// certificate (403).
	SourceMismatch = "source_mismatch"
	// Panic means that code of the operator panicked (503).
	Panic = "panic"
)

// The reasons of a sender for the answers that it gets: metric labels.
const (
	// Forbidden means that this runtime may not trigger the event (403).
	Forbidden = "forbidden"
	// GatewayRefused means that a gateway refused. nginx answers with a web page (400 in HTML) when
	// it does not trust the client certificate. A mesh policy answers with 403 and without the
	// reason of a listener. Neither answer means that the event itself was refused.
	GatewayRefused = "gateway_refused"
	// UnknownContract means that the path of contract v3 is not known: the receiver, or a gateway
	// in front of it, answers with 404. The reason of the answer is not [UnknownManager].
	UnknownContract = "unknown_contract"
)
