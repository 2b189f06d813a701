package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/runtime-watcher/runtime-watcher/internal/shorttext"
)

const (
	maxHeader = 64 << 10
	// maxErrorBody bounds the body of an answer without success. The rest is cut.
	maxErrorBody = 32 << 10
	// maxRead bounds all bytes that the connections of a cluster deliver in one reconcile and until
	// the next one. Bytes outside of answers, such as frames of HTTP/2, also count.
	maxRead = 6 << 20
)

// bound bounds the connections of a configuration, which must have a Dial, and their answers. It
// accepts JSON only, without compression, and ignores warnings, of which a client would keep each
// one to log it once.
func bound(config *rest.Config) {
	left := &atomic.Int64{} // bytes that the connections may still deliver
	left.Store(maxRead)
	dial := config.Dial
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &meteredConn{c, left}, nil
	}

	config.ContentType = jsonType
	config.AcceptContentTypes = jsonType
	config.DisableCompression = true
	config.WarningHandlerWithContext = rest.NoWarnings{}

	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		boundHeaders(next)
		return &bounded{next, left}
	})
}

// meteredConn ends when its cluster sends more than allowed.
type meteredConn struct {
	net.Conn

	left *atomic.Int64
}

func (c *meteredConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.left.Add(-int64(n)) < 0 {
		_ = c.Close()
		return 0, ErrLargeAnswer
	}
	return n, err
}

// withoutRedirects returns a copy of a client. A redirect could lead to any address that the
// operator reaches, also in plain text.
func withoutRedirects(c *http.Client) *http.Client {
	own := *c
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &own
}

// boundHeaders sets the bound of the transport, which belongs to one configuration, as Dial does.
func boundHeaders(next http.RoundTripper) {
	for {
		switch rt := next.(type) {
		case *http.Transport:
			rt.MaxResponseHeaderBytes = maxHeader
			return
		case utilnet.RoundTripperWrapper:
			next = rt.WrappedRoundTripper()
		default:
			return
		}
	}
}

const jsonType = "application/json"

// bounded is a transport with bounds on each answer. left is the number of bytes that its
// connections may still read, for the reconcile that runs.
type bounded struct {
	http.RoundTripper

	left *atomic.Int64
}

// WrappedRoundTripper returns the transport with the connections (package util/net).
func (b *bounded) WrappedRoundTripper() http.RoundTripper { return b.RoundTripper }

// RoundTrip returns after the whole answer has arrived. Therefore an answer that arrives late or
// never uses no memory that other answers could use.
func (b *bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx := request.Context()
	own := budgetOf(ctx)
	// The first request of a reconcile renews the budget of the connections.
	own.begun.Do(func() { b.left.Store(maxRead) })

	response, err := b.RoundTripper.RoundTrip(acceptJSON(request))
	if err != nil {
		return nil, b.explainError(err)
	}

	late := response.Body
	defer func() { _ = late.Close() }()
	if err := checkType(response); err != nil {
		return nil, err
	}

	content, weight, err := readAnswer(response, own)
	if err != nil {
		return nil, b.explainError(err)
	}
	if err := own.awaitRoom(ctx, weight); err != nil {
		return nil, err
	}

	// A client would wait for as long as the answer says, and try ten times. The queue of the
	// controller has a backoff of its own.
	response.Header.Del("Retry-After")
	response.Header.Del("Content-Length")
	response.ContentLength = -1
	response.Body = content
	return response, nil
}

// explainError names the bound that has ended a connection. The HTTP client may hide it.
func (b *bounded) explainError(err error) error {
	if b.left.Load() < 0 && !errors.Is(err, ErrLargeAnswer) {
		err = fmt.Errorf("%w: %w", ErrLargeAnswer, err)
	}
	return shorttext.Error(err)
}

// readAnswer returns an answer without the managed fields of the items of a list, and the weight of
// the rest. It fails when the answers exceed the budget. An answer without success is cut.
func readAnswer(response *http.Response, own *budget) (content *parts, weight int64, err error) {
	from := io.Reader(response.Body)
	if response.StatusCode >= http.StatusMultipleChoices {
		from = io.LimitReader(from, maxErrorBody)
	}

	content = &parts{}
	filter := &fieldsFilter{}
	scale := &scale{}
	read := make([]byte, partSize)
	filtered := make([]byte, 0, partSize+len(nullFields))
	for {
		n, err := from.Read(read)
		filtered = filter.appendTo(filtered[:0], read[:n])
		added := scale.weighPart(filtered)
		if err := own.reserveWeight(added); err != nil {
			return nil, 0, err
		}

		weight += added
		content.appendText(filtered)

		if err == io.EOF {
			return content, weight, nil
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, 0, errors.New("answer ends early") // A client would try ten times after EOF.
		}
		if err != nil {
			return nil, 0, err
		}
	}
}

// partSize is the number of bytes that are read, weighed and reserved in one step.
const partSize = 16 << 10

// parts are the parts of an answer. A part that is read leaves memory, as the client keeps a copy.
type parts struct{ all [][]byte }

// appendText appends a copy of a text. A server may send few bytes at a time, so small ones are
// joined.
func (p *parts) appendText(text []byte) {
	if len(text) == 0 {
		return
	}

	last := len(p.all) - 1
	if last < 0 || cap(p.all[last])-len(p.all[last]) < len(text) {
		p.all = append(p.all, make([]byte, 0, max(partSize, len(text))))
		last++
	}
	p.all[last] = append(p.all[last], text...)
}

// Read implements [io.Reader].
func (p *parts) Read(into []byte) (int, error) {
	if len(p.all) == 0 {
		return 0, io.EOF
	}

	n := copy(into, p.all[0])
	p.all[0] = p.all[0][n:]
	if len(p.all[0]) == 0 {
		p.all[0] = nil
		p.all = p.all[1:]
	}
	return n, nil
}

// Close implements [io.Closer].
func (p *parts) Close() error {
	p.all = nil
	return nil
}

// acceptJSON asks for JSON where a client prefers another form, as the client of metadata does.
func acceptJSON(request *http.Request) *http.Request {
	var accepted []string
	for form := range strings.SplitSeq(request.Header.Get("Accept"), ",") {
		if strings.HasPrefix(strings.TrimSpace(form), jsonType) {
			accepted = append(accepted, form)
		}
	}

	if len(accepted) == 0 {
		return request
	}

	own := request.Clone(request.Context())
	own.Header.Set("Accept", strings.Join(accepted, ","))
	return own
}

// checkType refuses forms that a client would decode without being asked to: Protocol Buffers, CBOR
// and YAML with its aliases. The weight of an answer is the weight of its JSON.
func checkType(response *http.Response) error {
	kind := response.Header.Get("Content-Type")
	media, _, err := mime.ParseMediaType(kind)
	if kind == "" {
		return nil
	}
	isAllowed := media == jsonType || strings.HasPrefix(media, "text/")
	if isAllowed && err == nil {
		return nil
	}
	return fmt.Errorf("want an answer of type %s, have %.80q", jsonType, kind)
}
