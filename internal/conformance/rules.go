// Package conformance lists the rules of contract v3 and of the port core.Forwarder that a test can
// judge. The suites of core/coretest and cmd/conformance share this list. Each rule has a check in
// one of the two, and each check belongs to a rule.
package conformance

// End is the part that a rule binds: an end of the contract, or a forwarder on any transport.
type End string

// The ends.
const (
	Sender    End = "sender"
	Receiver  End = "receiver"
	Forwarder End = "forwarder"
)

// Needs names the requirements of a check beyond the contract.
type Needs int

const (
	// Wire means that a check needs only the contract.
	Wire Needs = iota
	// Script is a receiver that follows the script of coretest.ScriptedParts, and prints the
	// deliveries of its operator.
	Script
	// Single is a sender that also speaks contracts v1 and v2.
	Single
)

// Rule is one rule of the contract.
type Rule struct {
	End End
	// ID is unique for its end.
	ID string
	// Section is the anchor in docs/reference/contract-v3.md, or in docs/guide/extending.md for a
	// forwarder.
	Section string
	// Says is the rule in a few words.
	Says  string
	Needs Needs
}

// Rules returns all rules. The rules of each end are in the order of their checks.
func Rules() []Rule {
	const extending = "transport-of-your-own"
	return []Rule{
		{Receiver, "accepted", "answers", "acknowledges events with 202 without a body; the operator gets them", Wire},
		{Receiver, "recheck", "early-events", "names a check in milliseconds, at most a minute, with 202 only", Wire},
		{Receiver, "tls", "transport", "speaks TLS 1.3 and nothing older", Wire},
		{Receiver, "certificate", "receiver", "takes nothing without a client certificate, or with a wrong one", Wire},
		{Receiver, "media-type", "transport", "ignores parameters of the media type, and answers 415 to another", Wire},
		{Receiver, "protocol", "transport", "speaks HTTP/1.1 or HTTP/2", Wire},
		{Receiver, "unknown-length", "transport", "takes a body without Content-Length", Wire},
		{Receiver, "size", "transport", "takes 262144 bytes, and answers 413 to more", Wire},
		{Receiver, "elements", "transport", "takes 500 elements, and refuses 501", Wire},
		{Receiver, "unknown-members", "events", "ignores unknown attributes and members", Wire},
		{Receiver, "attributes", "events", "refuses attributes above 512 bytes, and an event without id", Wire},
		{Receiver, "base64", "events", "reads data_base64", Wire},
		{Receiver, "names", "type-changed", "refuses names above 253 bytes, and an owner that is not whole", Wire},
		{Receiver, "resync", "type-resync", "takes a resync with and without data and owner", Wire},
		{Receiver, "invalid", "invalid-batches", "answers 400 to an invalid batch, and takes none of its events", Wire},
		{Receiver, "hostile", "invalid-batches", "answers 400 to hostile bodies, and goes on", Wire},
		{Receiver, "cut-off", "receiver", "goes on after a body that ends early", Wire},
		{Receiver, "again", "receiver", "takes an event more than once", Wire},
		{Receiver, "claim", "receiver", "answers 403 to a source that is not that of the certificate", Wire},
		{Receiver, "unknown-manager", "answers", "answers 404 with unknown_manager", Wire},
		{Receiver, "too-fast", "answers", "answers 429 with Retry-After to a runtime that is too fast", Wire},
		{Receiver, "share", "receiver", "limits each runtime, and no other one with it", Wire},
		{Receiver, "heartbeat", "heartbeats", "takes a heartbeat alone, and behind events", Wire},
		{Receiver, "heartbeat-limits", "heartbeats", "refuses above 32 reasons, 64 fingerprints, 512 bytes", Wire},
		{Receiver, "path-check", "numbering", "acknowledges a lone last heartbeat of an unknown epoch", Wire},
		{Receiver, "new-epoch", "numbering", "asks for a resync at an epoch that begins without one", Script},
		{Receiver, "gap", "numbering", "asks for a resync at a gap, and not at retries and refused events", Script},
		{Receiver, "ahead", "heartbeats", "asks for a resync at a heartbeat with a higher sequence", Script},
		{Receiver, "went-back", "numbering", "asks for a resync at a heartbeat with a lower sequence", Script},
		{Receiver, "not-ready", "answers", "answers 503 for all while it cannot verify", Script},
		{Receiver, "forbidden-sender", "refusals-by-index", "answers 403 for all if it refuses the sender", Script},
		{Receiver, "partial", "refusals-by-index", "names an event that fails, and takes the others", Script},
		{Receiver, "all-refused", "refusals-by-index", "names all events if each fails for itself", Script},
		{Receiver, "operator-not-ready", "receiver", "loses nothing if the operator is not ready once", Script},
		{Receiver, "single", "contracts-v1-and-v2", "answers 200 to v1 and v2, and 400, 413 and 415 as v3 does", Wire},
		{Sender, "refused-sender", "answers", "retries after 30 s at 401, 403 and a gateway's 400", Wire},
		{Sender, "rotation", "answers", "notices a new certificate within 10 s, and ends the waits after 401", Wire},
		{Sender, "request", "transport", "posts with media type, size and certificate, over TLS 1.3", Wire},
		{Sender, "server-certificate", "transport", "sends nothing to a server that it cannot trust", Wire},
		{Sender, "redirect", "transport", "follows no redirect, and keeps the events", Wire},
		{Sender, "limits", "transport", "sends at most 262144 bytes and 500 elements per batch, and loses none", Wire},
		{Sender, "claim", "events", "claims the runtime of its certificate, and has an id for each event", Wire},
		{Sender, "content", "type-changed", "names the object and its kind", Wire},
		{Sender, "resync-first", "sender", "asks for a resync when it starts", Wire},
		{Sender, "epoch", "numbering", "takes a new epoch when it starts", Wire},
		{Sender, "sequence", "numbering", "numbers events from 1 without gaps, one request at a time", Wire},
		{Sender, "retry", "numbering", "keeps number and id in a retry", Wire},
		{Sender, "merge", "numbering", "sends a newer event of the object with another id", Wire},
		{Sender, "heartbeat", "heartbeats", "sends numbered heartbeats with the highest sequence", Wire},
		{Sender, "last", "sender", "delivers at its end, and sends the last heartbeat", Wire},
		{Sender, "silent-end", "sender", "sends no last heartbeat if events are left", Wire},
		{Sender, "acknowledged", "answers", "forgets events at 202", Wire},
		{Sender, "recheck", "early-events", "takes a wrong time of a check for none, and forgets the events", Wire},
		{Sender, "foreign-success", "answers", "keeps events at another 2xx, or at one with a body", Wire},
		{Sender, "retry-after", "answers", "waits for Retry-After at 429 and 503", Wire},
		{Sender, "backoff", "sender", "doubles the waits of its retries", Wire},
		{Sender, "dropped", "answers", "drops an event that gets 400, 413 or 415 alone, and asks for a resync", Wire},
		{Sender, "kept", "answers", "keeps events at any other answer", Wire},
		{Sender, "hostile", "answers", "keeps events at answers that are garbage", Wire},
		{Sender, "partial", "refusals-by-index", "retries a refused event alone, and lets none wait for it", Wire},
		{Sender, "index-outside", "refusals-by-index", "takes an answer with a wrong index as one for all", Wire},
		{Sender, "single", "contracts-v1-and-v2", "sends single events of v1 and v2, and keeps each until 200", Single},
		{Forwarder, "context", extending, "returns soon after its context ends, with the error of it", Wire},
		{Forwarder, "empty", extending, "sends nothing for an empty batch", Wire},
		{Forwarder, "content", extending, "delivers objects, owners and details", Wire},
		{Forwarder, "resync", extending, "delivers a resync as one", Wire},
		{Forwarder, "claim", extending, "delivers source and epoch", Wire},
		{Forwarder, "numbers", extending, "delivers sequences and IDs", Wire},
		{Forwarder, "heartbeat", extending, "delivers a heartbeat alone, and behind events", Wire},
		{Forwarder, "order", extending, "delivers events in their order, and names those that it does not send", Wire},
		{Forwarder, "concurrent", extending, "serves concurrent calls", Wire},
		{Forwarder, "batch", extending, "neither changes nor keeps the batch", Wire},
		{Forwarder, "permanent", extending, "returns a permanent error for a refusal for good", Wire},
		{Forwarder, "refused-sender", extending, "has an error of its own for an unknown or forbidden sender", Wire},
		{Forwarder, "unknown-manager", extending, "returns core.ErrUnknownManager for one that is not served", Wire},
		{Forwarder, "too-large", extending, "returns core.ErrTooLarge for a batch that must be smaller", Wire},
		{Forwarder, "not-ready", extending, "returns core.ErrNotReady with the wait that the far end asks for", Wire},
		{Forwarder, "unreachable", extending, "returns a retryable error without a far end", Wire},
		{Forwarder, "partial", extending, "names the events that were refused, and no others", Wire},
		{Forwarder, "unsendable", extending, "names an event that it cannot carry, and sends the others", Wire},
		{Forwarder, "recovers", extending, "works again after failures", Wire},
	}
}
