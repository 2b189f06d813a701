package httpmtls

import (
	"io"
	"net/http"
)

// maxDrained is what is read of an answer so that its connection can be reused. Beyond, a new one is cheaper.
const maxDrained = 64 << 10

// roundTripper keeps connections alive where retryablehttp would not. It hides CloseIdleConnections, which that calls after each
// failure: a control plane that answers 503 would get a handshake for every attempt. And it drains what that leaves.
type roundTripper struct{ transport *http.Transport }

// RoundTrip implements [http.RoundTripper].
func (r *roundTripper) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := r.transport.RoundTrip(request)
	if err != nil {
		return nil, err //nolint:wrapcheck // It is for net/http.
	}

	answer.Body = &drainedBody{answer.Body}

	return answer, nil
}

// drainedBody is read to its end, within reason, when it is closed. The context of the request bounds that.
type drainedBody struct{ io.ReadCloser }

func (b *drainedBody) Close() error {
	_, _ = io.Copy(io.Discard, io.LimitReader(b.ReadCloser, maxDrained)) // Failing, the connection is not reused.

	return b.ReadCloser.Close() //nolint:wrapcheck // It is for net/http.
}
