package admission

import "net/http"

// traceParentOf returns the trace parent of a call (W3C Trace Context, section 3.2), "" if it has
// none of version 00. Its size is bounded, because an outbox keeps it.
func traceParentOf(header http.Header) string {
	const size = len("00-") + 32 + len("-") + 16 + len("-01")
	parent := header.Get("Traceparent")
	if len(parent) != size || parent[:3] != "00-" {
		return ""
	}
	return parent
}
