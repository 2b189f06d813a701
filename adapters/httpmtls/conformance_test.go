package httpmtls_test

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
)

func TestForwarderConformance(t *testing.T) {
	t.Parallel()
	for _, version := range contract.Versions() {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			eachProtocol(t, func(t *testing.T, protocol string) {
				t.Helper()
				coretest.TestForwarder(t, func(t *testing.T, far *coretest.Recorder) coretest.ForwarderHarness {
					t.Helper()
					return conformanceHarness(t, version, protocol, far)
				}, conformanceOptions(version))
			})
		})
	}
}

func conformanceHarness(
	t *testing.T, version contract.Version, protocol string, far *coretest.Recorder,
) coretest.ForwarderHarness {
	t.Helper()
	keys := newPKI(t)
	end := newFarEnd(t, keys.server, contractHandler(version, far))
	// The suite expects the Retry-After of the far end only.
	forwarder, err := httpmtls.NewForwarder(keys.client, end.address(), version,
		httpmtls.Options{Protocol: protocol, RefusedRetryAfter: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = forwarder.Close() })
	return coretest.ForwarderHarness{Forwarder: forwarder, Disconnect: func() {
		_ = end.Listener.Close()
		end.CloseClientConnections()
	}}
}

func conformanceOptions(version contract.Version) coretest.ForwarderOptions {
	unsendable := event("object")
	if version.NeedsOwner() {
		unsendable.Owner.Name = ""
	} else {
		unsendable.Watched.Name = ""
	}
	return coretest.ForwarderOptions{
		WithoutOwner:   version == contract.V2,
		WithoutNumbers: !version.Numbered(),
		WithoutDetails: !version.Numbered(),
		Unsendable:     &unsendable,
	}
}

// contractHandler answers as the contracts require.
func contractHandler(version contract.Version, far *coretest.Recorder) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body := must(io.ReadAll(r.Body))
		var to core.Manager
		for _, candidate := range []core.Manager{"manager-a", "manager-b"} {
			if r.URL.Path == version.Path(candidate) {
				to = candidate
			}
		}
		batch, err := version.Decode(body)
		if err == nil {
			err = far.Forward(r.Context(), to, batch)
		}
		// An answer could arrive before the caller notices that its context has ended.
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler)
		}
		if partial, ok := errors.AsType[core.EventErrors](err); ok {
			refuseSome(w, partial)
			return
		}
		if err == nil {
			w.WriteHeader(version.Status())
			return
		}
		if after := core.RetryAfter(err); after > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(after.Seconds())))
		}
		answer := contract.Answer{Refusal: contract.Refusal{Status: statusFor(err), Reason: core.Reason(err)}}
		w.WriteHeader(answer.Status)
		_, _ = w.Write(must(answer.Body()))
	}
}

// refuseSome answers a batch with refused events.
func refuseSome(w http.ResponseWriter, partial core.EventErrors) {
	failures := make(map[int]contract.Refusal, len(partial))
	for index, err := range partial {
		failures[index] = contract.Refusal{
			Status: statusFor(err), Reason: core.Reason(err),
			RetryAfter: core.RetryAfter(err),
		}
	}
	answer := contract.Answer{Failed: failures}
	answer.Status, answer.Reason = http.StatusUnprocessableEntity, "partial"
	w.WriteHeader(answer.Status)
	_, _ = w.Write(must(answer.Body()))
}

func statusFor(err error) int {
	switch {
	case err == nil:
		return http.StatusOK
	case core.IsPermanent(err):
		return http.StatusBadRequest
	case errors.Is(err, core.ErrUnauthenticated):
		return http.StatusUnauthorized
	case errors.Is(err, core.ErrForbidden):
		return http.StatusForbidden
	case errors.Is(err, core.ErrUnknownManager):
		return http.StatusNotFound
	default:
		return http.StatusServiceUnavailable
	}
}
