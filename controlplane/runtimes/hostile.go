package runtimes

import (
	"errors"
	"io"
	"net/http"

	"k8s.io/client-go/rest"
)

// defaultMaxAnswer is far more than the largest object, which etcd bounds at 1.5 MiB.
const defaultMaxAnswer = 8 << 20

var errLargeAnswer = errors.New("answer is larger than allowed")

// distrust bounds the answers of a runtime, and ignores its warnings. A client would keep each of
// them to log it once.
func distrust(config *rest.Config, maxAnswer int64) {
	config.WarningHandlerWithContext = rest.NoWarnings{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &bounded{next, maxAnswer} })
}

// withoutRedirects returns a copy of a client. A redirect could lead to any address that the
// operator reaches, also in plain text.
func withoutRedirects(c *http.Client) *http.Client {
	own := *c
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &own
}

// bounded fails the read of an answer that is longer than most, in bytes.
type bounded struct {
	http.RoundTripper

	most int64
}

// WrappedRoundTripper returns the transport with the connections (package util/net).
func (b *bounded) WrappedRoundTripper() http.RoundTripper { return b.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (b *bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(request)
	if err == nil {
		response.Body = &boundedBody{response.Body, b.most}
	}
	return response, err
}

type boundedBody struct {
	io.ReadCloser

	left int64
}

// Read implements [io.Reader].
func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	if b.left < 0 {
		return 0, errLargeAnswer
	}
	return n, err
}
