package httpmtls

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

const (
	// maxKept bounds the bytes of an answer that an error keeps.
	maxKept = 1 << 10
	// maxFailures is in bytes, and more than an answer that names every event.
	maxFailures = 64 << 10
)

// message is an encoded batch with the delay that its answer names.
type message struct {
	*contract.Request

	events int
	// recheckAfter comes from an answer that acknowledges the request.
	recheckAfter time.Duration
}

// indexOf returns the index of an element of the request in the batch.
func (m *message) indexOf(element int) int { return m.Index(element, m.events) }

// readAnswer returns nil for an acknowledgement, and otherwise the error of the batch or of its
// events. It stores the delay of an acknowledgement in m.
func (f *Forwarder) readAnswer(target *url.URL, answer *http.Response, m *message) error {
	const firstSuccess, lastSuccess = 200, 299
	// RFC 9110, section 15.3.
	if answer.StatusCode >= firstSuccess && answer.StatusCode <= lastSuccess {
		return f.readSuccess(target, answer, m)
	}

	kept, readErr := io.ReadAll(io.LimitReader(answer.Body, maxFailures))
	decoded := contract.DecodeAnswer(answer.StatusCode, kept, m.Elements())
	decoded.RetryAfter = parseRetryAfter(answer.Header, time.Now(), maxRetryAfter)
	if len(decoded.Failed) > 0 {
		return f.eventErrors(target, decoded.Failed, m)
	}

	failed := f.refusalError(target, decoded.Refusal, isWebPage(answer.Header))
	failed.Body = cmp.Or(string(decoded.Reason), string(bytes.TrimSpace(kept)))
	failed.Body = failed.Body[:min(len(failed.Body), maxKept)]
	failed.Err = errors.Join(failed.Err, readErr)
	return failed
}

// errForeignSuccess means that a gateway answered, and not a receiver.
var errForeignSuccess = errors.New("not an answer from a receiver: check the route to the control plane")

// readSuccess distinguishes an acknowledgement from the page of a gateway: contract v3 has exactly
// one status, and no contract has a body. Deployed receivers of contracts v1 and v2 may answer any
// 2xx.
func (f *Forwarder) readSuccess(target *url.URL, answer *http.Response, m *message) error {
	isForeign := hasBody(answer)
	reason := core.ReasonGatewayRefused
	if f.version == contract.V3 {
		reason = core.ReasonUnknownContract
		isForeign = isForeign || answer.StatusCode != f.version.Status()
	}

	if !isForeign {
		if f.version.Numbered() {
			m.recheckAfter = contract.ParseRecheckAfter(answer.Header.Get(contract.RecheckAfterHeader))
		}
		return nil
	}

	failed := failure(target, reason, errForeignSuccess)
	failed.Status = answer.StatusCode
	failed.retryAfter = max(f.opts.RefusedRetryAfter, 0)
	return failed
}

// hasBody reports whether an answer has a body. Without a length, its media type says so.
func hasBody(answer *http.Response) bool {
	isUnknown := answer.ContentLength < 0
	if isUnknown {
		return answer.Header.Get("Content-Type") != ""
	}
	return answer.ContentLength > 0
}

// ofEvent returns the error as one of the only event, if a contract carries one event and only the
// event can be the cause. Deployed listeners of contracts v1 and v2 name no index.
func (f *Forwarder) ofEvent(err error, m *message) error {
	failed, ok := errors.AsType[*requestError](err)
	if !ok || f.version.MaxEvents() > 1 {
		return err
	}

	isOfEvent := failed.permanent || failed.reason == reasons.Forbidden
	if !isOfEvent {
		return err
	}

	return core.EventErrors{m.indexOf(0): err}
}

// isWebPage reports whether an answer is HTML. A gateway may write it, a listener never does.
func isWebPage(header http.Header) bool {
	mediaType, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
	return mediaType == "text/html"
}

func (f *Forwarder) eventErrors(target *url.URL, refused map[int]contract.Refusal, m *message) core.EventErrors {
	all := make(core.EventErrors, len(refused))
	for element, r := range refused {
		r.RetryAfter = min(r.RetryAfter, maxRetryAfter)
		failed := f.refusalError(target, r, false)
		failed.Body = string(r.Reason)[:min(len(r.Reason), maxKept)]
		failed.named = true
		all[m.indexOf(element)] = failed
	}
	return all
}

// refusalError returns the error for a refusal. page is whether the answer was HTML.
func (f *Forwarder) refusalError(target *url.URL, r contract.Refusal, page bool) *requestError {
	meaning := f.version.Interpret(r, page)
	failed := failure(target, meaning.Reason, meaning.Cause)
	failed.Status = r.Status
	failed.permanent = meaning.Permanent

	switch {
	case meaning.Permanent:
	// The contract asks for a long wait, but the answer has none.
	case meaning.Slow && r.RetryAfter == 0:
		failed.retryAfter = max(f.opts.RefusedRetryAfter, 0)
	default:
		failed.retryAfter = r.RetryAfter
	}

	return failed
}

// parseRetryAfter returns the wait that Retry-After asks for, in seconds or until a date (RFC 9110,
// section 10.2.3). It is at most limit, and 0 for a missing or malformed header. A date counts from
// the Date of the answer, as clocks differ, and from now without one.
func parseRetryAfter(header http.Header, now time.Time, limit time.Duration) time.Duration {
	value := strings.TrimSpace(header.Get("Retry-After"))
	// A number without sign. One that is too large for 31 bits is the largest that is not.
	seconds, err := strconv.ParseUint(value, 10, 31)
	isNumber := err == nil || errors.Is(err, strconv.ErrRange)
	if isNumber {
		return min(time.Duration(seconds)*time.Second, limit)
	}

	date, err := http.ParseTime(value)
	if err != nil {
		return 0
	}

	sent, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		sent = now
	}

	return min(max(date.Sub(sent), 0), limit)
}
