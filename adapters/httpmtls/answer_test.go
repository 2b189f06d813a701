package httpmtls_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// meaning is what a forwarder makes of an answer. The zero value is an acknowledgement.
type meaning struct {
	Permanent  bool
	OneEvent   bool
	Reason     string
	RetryAfter time.Duration
	Is         error
}

// TestAnswers has the answers of receivers and gateways. Package contract has the meaning of each
// status.
func TestAnswers(t *testing.T) {
	t.Parallel()

	const (
		v1, v2, v3 = contract.V1, contract.V2, contract.V3
		slow       = 30 * time.Second
		because    = "because of it"
		page       = "<html>Welcome</html>"
	)
	var (
		moved           = http.Header{"Location": {"/elsewhere"}}
		html            = http.Header{"Content-Type": {"text/html; charset=utf-8"}}
		empty           = http.Header{"Content-Type": {"text/html"}, "Content-Length": {"0"}}
		after           = func(seconds string) http.Header { return http.Header{"Retry-After": {seconds}} }
		acknowledged    = meaning{}
		redirect        = meaning{Reason: "redirect"}
		unauthenticated = meaning{Reason: "unauthenticated", RetryAfter: slow, Is: core.ErrUnauthenticated}
		forbidden       = meaning{OneEvent: true, Reason: "forbidden", RetryAfter: slow, Is: core.ErrForbidden}
		denied          = meaning{Reason: "forbidden", RetryAfter: slow, Is: core.ErrForbidden}
		unknownManager  = meaning{Reason: "unknown_manager", Is: core.ErrUnknownManager}
		gateway         = meaning{Reason: "gateway_refused", RetryAfter: slow}
		foreignPage     = meaning{Reason: "unknown_contract", RetryAfter: slow}
		clientError     = meaning{Reason: "client_error"}
		serverError     = meaning{Reason: "server_error"}
		tooFast         = func(wait time.Duration) meaning {
			return meaning{Reason: "too_fast", RetryAfter: wait, Is: core.ErrNotReady}
		}
		notReady = func(wait time.Duration) meaning {
			return meaning{Reason: "not_ready", RetryAfter: wait, Is: core.ErrNotReady}
		}
		ofEvent = func(reason string) meaning { return meaning{Permanent: true, OneEvent: true, Reason: reason} }
	)
	keys := newPKI(t)
	for name, tc := range map[string]struct {
		version  contract.Version
		status   int
		header   http.Header
		body     string
		want     meaning
		requests int64
	}{
		"300":          {v2, 300, nil, because, redirect, 1},
		"302":          {v2, 302, moved, because, redirect, 1},
		"308":          {v2, 308, moved, because, redirect, 1},
		"400":          {v2, 400, nil, because, ofEvent("malformed"), 1},
		"400 of nginx": {v2, 400, html, because, gateway, 1},
		"401":          {v2, 401, nil, because, unauthenticated, 1},
		"403":          {v2, 403, nil, because, forbidden, 1},
		"404":          {v2, 404, nil, because, unknownManager, 1},
		"405":          {v2, 405, nil, because, clientError, 1},
		"413":          {v2, 413, nil, because, ofEvent("too_large"), 1},
		"415":          {v2, 415, nil, because, ofEvent("unsupported_media_type"), 1},
		"429":          {v2, 429, nil, because, tooFast(0), 1},
		"429 with":     {v2, 429, after("3"), because, tooFast(3 * time.Second), 1},
		"500":          {v2, 500, nil, because, serverError, 1},
		"502":          {v2, 502, nil, because, serverError, 3},
		"503":          {v2, 503, nil, because, notReady(0), 3},
		"503 with":     {v2, 503, after("12"), because, notReady(12 * time.Second), 1},
		"503 for ever": {v2, 503, after("99999999999999999999"), because, notReady(5 * time.Minute), 1},
		"504":          {v2, 504, nil, because, serverError, 1},
		"599":          {v2, 599, nil, because, serverError, 1},
		"401 with": {
			v2, 401, after("7"), because, meaning{Reason: "unauthenticated", RetryAfter: 7 * time.Second, Is: core.ErrUnauthenticated}, 1,
		},
		// Only a listener can mean the manager. Gateways answer 404 for a path that they do not
		// know, and 403 by a policy.
		"v3, unknown manager": {v3, 404, nil, `{"reason":"unknown_manager"}`, unknownManager, 1},
		"v3, mux of Go":       {v3, 404, nil, "404 page not found", meaning{Reason: "unknown_contract", Is: core.ErrUnknownManager}, 1},
		"v3, forbidden":       {v3, 403, nil, `{"reason":"san_mismatch"}`, denied, 1},
		"v3, a policy":        {v3, 403, nil, "RBAC: access denied", meaning{Reason: "gateway_refused", RetryAfter: slow, Is: core.ErrForbidden}, 1},
		// A gateway without a route may answer with a page and a status of success. It is no
		// acknowledgement. For contracts v1 and v2, an answer without a body is an
		// acknowledgement with any status 2xx.
		"v3, 202":                  {v3, 202, nil, "", acknowledged, 1},
		"v3, 202 with a page":      {v3, 202, nil, page, foreignPage, 1},
		"v3, 200":                  {v3, 200, nil, "", foreignPage, 1},
		"v3, 200 with an open end": {v3, 200, html, page, foreignPage, 1},
		"v2, 200":                  {v2, 200, nil, "", acknowledged, 1},
		"v2, 202":                  {v2, 202, nil, "", acknowledged, 1},
		"v2, 204":                  {v2, 204, nil, "", acknowledged, 1},
		"v2, 299":                  {v2, 299, nil, "", acknowledged, 1},
		"v2, 200 with a type only": {v2, 200, empty, "", acknowledged, 1},
		"v2, 200 with a page":      {v2, 200, nil, page, gateway, 1},
		"v2, 200 with an open end": {v2, 200, html, page, gateway, 1},
		"v1, 200 with a page":      {v1, 200, nil, page, gateway, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var requests atomic.Int64
			end := newFarEnd(t, keys.server, func(w http.ResponseWriter, _ *http.Request) {
				requests.Add(1)
				maps.Copy(w.Header(), tc.header)
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, tc.body)
				if tc.header != nil {
					_ = http.NewResponseController(w).Flush() // The length is unknown.
				}
			})
			err := forward(t, newForwarderOf(t, keys.client, end.address(), tc.version, httpmtls.Options{}), event("object"))
			if got := requests.Load(); got != tc.requests {
				t.Errorf("%d requests, want %d", got, tc.requests)
			}
			if err == nil && tc.want == acknowledged {
				return
			}

			some, oneEvent := errors.AsType[core.EventErrors](err)
			failure := failureOf(t, err)
			got := meaning{core.IsPermanent(failure), oneEvent, string(core.ReasonOf(failure)), core.RetryAfter(failure), tc.want.Is}
			if diff := cmp.Diff(tc.want, got, cmp.Comparer(errors.Is)); diff != "" {
				t.Errorf("%v: %s", err, diff)
			}
			if oneEvent && len(some) != 1 || tc.want.Is != nil && !errors.Is(failure, tc.want.Is) {
				t.Errorf("%v of %d events is not %v", failure, len(some), tc.want.Is)
			}

			text := failure.Error()
			if failure.Status != tc.status || failure.URL != end.URL+tc.version.Path(manager) ||
				tc.body == because && (failure.Body != because || !strings.HasSuffix(text, `: "`+because+`"`)) ||
				!strings.Contains(text, fmt.Sprint(": status ", tc.status)) || strings.Contains(text, `\`) {
				t.Errorf("the error does not name the request in plain words: %+v", failure)
			}
		})
	}
}

// The option sets the wait after an answer that refuses the sender. A negative option means no
// wait.
func TestRefusedRetryAfterOption(t *testing.T) {
	t.Parallel()

	keys := newPKI(t)
	page := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("a page of a gateway")) }
	for _, answer := range []http.HandlerFunc{answerWith(http.StatusForbidden), page} {
		end := newFarEnd(t, keys.server, answer)
		for option, want := range map[time.Duration]time.Duration{time.Minute: time.Minute, -1: 0} {
			forwarder := newForwarder(t, keys.client, end.address(), httpmtls.Options{RefusedRetryAfter: option})
			if got := core.RetryAfter(failureOf(t, forward(t, forwarder, event("object")))); got != want {
				t.Errorf("option %v: RetryAfter %v, want %v", option, got, want)
			}
		}
	}
}
