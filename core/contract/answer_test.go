package contract_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

func body(t *testing.T, answer contract.Answer) []byte {
	t.Helper()
	return must(answer.Body())(t)
}

// An answer that refuses some events arrives with the status, reason and wait of each.
func TestPartialAnswer(t *testing.T) {
	t.Parallel()

	want := contract.Answer{Refusal: contract.Refusal{Status: 422, Reason: "partial"}, Failed: map[int]contract.Refusal{
		0: {Status: 503, Reason: "not_ready", RetryAfter: 2 * time.Second},
		7: {Status: 403, Reason: "san_mismatch"},
	}}
	text := body(t, want)

	const wire = `{"reason":"partial","failed":[` +
		`{"index":0,"status":503,"reason":"not_ready","retryAfter":2},{"index":7,"status":403,"reason":"san_mismatch"}]}`
	if diff := cmp.Diff(wire+"\n", string(text)); want.Status != 422 || diff != "" {
		t.Errorf("status %d, body (-want +got):\n%s", want.Status, diff)
	}

	if diff := cmp.Diff(want, contract.DecodeAnswer(422, text, 8)); diff != "" {
		t.Errorf("decoded (-want +got):\n%s", diff)
	}
}

// An answer that names no element of the request is for all of it.
func TestDecodeAnswerOfOthers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ body, reason string }{
		"empty":        {"", ""},
		"plain":        {`{"reason":"busy"}`, "busy"},
		"out of range": {`{"reason":"partial","failed":[{"index":0,"status":503},{"index":8,"status":503}]}`, "partial"},
		"negative":     {`{"failed":[{"index":-1,"status":503}]}`, ""},
		"html":         {"<html>", ""},
		"other JSON":   {`{"error":"forbidden"}`, ""},
	} {
		want := contract.Answer{Refusal: contract.Refusal{Status: 503, Reason: core.Reason(tt.reason)}}
		if diff := cmp.Diff(want, contract.DecodeAnswer(503, []byte(tt.body), 8)); diff != "" {
			t.Errorf("%s: decoded (-want +got):\n%s", name, diff)
		}
	}
}

// A wait is rounded up: an agent that comes back early would be refused again.
func TestSeconds(t *testing.T) {
	t.Parallel()
	for wait, want := range map[time.Duration]int64{
		0: 0, 1: 1, time.Second: 1, time.Second + 1: 2, 90 * time.Second: 90,
	} {
		if got := contract.Seconds(wait); got != want {
			t.Errorf("Seconds(%v) = %d, want %d", wait, got, want)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"failed":[{"index":1,"status":503,"retryAfter":9223372036854775807}]}`), 3)
	f.Add([]byte(`{"reason":"partial","failed":[{"index":0,"status":-1,"retryAfter":-1}]}`), 1)
	f.Fuzz(func(t *testing.T, body []byte, elements int) {
		for index, refusal := range contract.DecodeAnswer(503, body, elements).Failed {
			if index < 0 || index >= elements || refusal.RetryAfter < 0 || refusal.RetryAfter > time.Hour {
				t.Errorf("element %d is refused with %+v", index, refusal)
			}
		}
	})
}

// Each status, with and without the reason of a listener, has the meaning that the sender acts on.
func TestInterpret(t *testing.T) {
	t.Parallel()

	type meaning = contract.Meaning
	var (
		unknown         = meaning{Reason: "unknown_contract", Cause: core.ErrUnknownManager}
		denied          = meaning{Reason: "gateway_refused", Cause: core.ErrForbidden, Slow: true}
		forbidden       = meaning{Reason: "forbidden", Cause: core.ErrForbidden, Slow: true}
		unauthenticated = meaning{Reason: "unauthenticated", Cause: core.ErrUnauthenticated, Slow: true}
		noManager       = meaning{Reason: "unknown_manager", Cause: core.ErrUnknownManager}
		malformed       = meaning{Reason: "malformed", Permanent: true}
		tooLarge        = meaning{Reason: "too_large", Cause: core.ErrTooLarge, Permanent: true}
		mediaType       = meaning{Reason: "unsupported_media_type", Permanent: true}
		gateway         = meaning{Reason: "gateway_refused", Slow: true}
		tooFast         = meaning{Reason: "too_fast", Cause: core.ErrNotReady}
		notReady        = meaning{Reason: "not_ready", Cause: core.ErrNotReady}
		redirect        = meaning{Reason: "redirect"}
		clientError     = meaning{Reason: "client_error"}
		serverError     = meaning{Reason: "server_error"}
		gatewayError    = meaning{Reason: "server_error", Cause: core.ErrNotReady}
	)

	for _, tt := range []struct {
		status int
		reason string
		page   bool
		single meaning // v1 and v2
		batch  meaning // v3
	}{
		{400, "malformed", false, malformed, malformed},
		{400, "", true, gateway, gateway},
		{401, "unauthenticated", false, unauthenticated, unauthenticated},
		{403, "san_mismatch", false, forbidden, forbidden},
		{403, "", false, forbidden, denied},
		{403, "", true, forbidden, denied},
		{404, "unknown_manager", false, noManager, noManager},
		{404, "not_found", false, noManager, unknown},
		{404, "", true, noManager, unknown},
		{413, "too_large", false, tooLarge, tooLarge},
		{415, "", false, mediaType, mediaType},
		{429, "too_fast", false, tooFast, tooFast},
		{503, "busy", false, notReady, notReady},
		{302, "", false, redirect, redirect},
		{418, "", true, clientError, clientError},
		{502, "", true, gatewayError, gatewayError},
		{504, "", true, gatewayError, gatewayError},
		{500, "", false, serverError, serverError},
		{0, "", false, serverError, serverError},
	} {
		refusal := contract.Refusal{Status: tt.status, Reason: core.Reason(tt.reason)}
		name := fmt.Sprintf("%d %q, page %v", tt.status, tt.reason, tt.page)
		checkMeaning(t, "v1 "+name, contract.V1.Interpret(refusal, tt.page), tt.single)
		checkMeaning(t, "v2 "+name, contract.V2.Interpret(refusal, tt.page), tt.single)
		checkMeaning(t, "v3 "+name, contract.V3.Interpret(refusal, tt.page), tt.batch)
	}
}

func checkMeaning(t *testing.T, name string, got, want contract.Meaning) {
	t.Helper()

	sameCause := errors.Is(got.Cause, want.Cause)
	got.Cause = want.Cause
	if !sameCause || got != want {
		t.Errorf("%s means %+v, want %+v", name, got, want)
	}
}
