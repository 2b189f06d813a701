package httpmtls_test

import (
	"io"
	"net/http"
	"strconv"
	"testing"

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
					keys := newPKI(t)
					end := newFarEnd(t, keys.server, contractHandler(version, far))
					opts := unhurried(protocol)
					opts.RefusedRetryAfter = -1 // The suite expects the Retry-After of the far end only.
					forwarder := newForwarderOf(t, keys.client, end.address(), version, opts)
					return coretest.ForwarderHarness{Forwarder: forwarder, Disconnect: func() {
						_ = end.Listener.Close()
						end.CloseClientConnections()
					}}
				}, conformanceOptions(version))
			})
		})
	}
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
		answer := version.AnswerTo(err)
		if answer.RetryAfter > 0 && answer.Failed == nil {
			w.Header().Set("Retry-After", strconv.FormatInt(contract.Seconds(answer.RetryAfter), 10))
		}
		w.WriteHeader(answer.Status)
		if err != nil {
			_, _ = w.Write(must(answer.Body()))
		}
	}
}
