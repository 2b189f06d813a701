package httpmtls

import (
	"io"
	"net/http"
)

// keepAlive is a transport that keeps its connections after failures. It hides
// CloseIdleConnections, which retryablehttp calls after the last attempt. Otherwise, each request
// that ends in 503 would cost a handshake.
//
// It also sets the header, because [http.Client] clones that of each request, for redirects.
type keepAlive struct {
	transport http.RoundTripper
	header    http.Header
}

// RoundTrip implements [http.RoundTripper].
func (k keepAlive) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.WithContext(request.Context()) // The given one must not be changed.
	request.Header = k.header
	answer, err := k.transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusSwitchingProtocols {
		_ = answer.Body.Close() // It is the connection, and no deadline ends its reads.
		answer.Body = http.NoBody
	}
	if answer.ContentLength != 0 {
		answer.Body = drainedBody{answer.Body}
	}
	return answer, nil
}

// maxDrained bounds the bytes read from an answer so that its connection can be reused. Beyond
// that, a new connection is cheaper.
const maxDrained = 64 << 10

// drainedBody reads the rest of an answer when it is closed. Only then can HTTP/1.1 reuse the
// connection.
type drainedBody struct{ io.ReadCloser }

// Close reads at most maxDrained bytes, and closes the body.
func (b drainedBody) Close() error {
	_, _ = io.CopyN(io.Discard, b.ReadCloser, maxDrained) // If it fails, the connection is not reused.
	return b.ReadCloser.Close()
}
