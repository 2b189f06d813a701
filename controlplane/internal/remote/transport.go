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
	"sync"
	"sync/atomic"
	"unicode/utf8"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

const (
	maxHeader = 64 << 10
	// maxErrorBody bounds the body of an answer without success. The rest is cut.
	maxErrorBody = 32 << 10
	// maxRead bounds all bytes that the connections of a runtime deliver in one reconcile and until
	// the next one, with everything that is no answer, such as frames of HTTP/2.
	maxRead = 6 << 20
)

// Distrust bounds the connections of a configuration, which must have a Dial, and their answers. It
// accepts JSON only, without compression, and ignores warnings, of which a client would keep each
// one to log it once.
func Distrust(config *rest.Config) {
	left := &atomic.Int64{} // bytes that the connections may still deliver
	dial := config.Dial
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &meteredConn{c, left}, nil
	}
	config.ContentType, config.AcceptContentTypes = jsonType, jsonType
	config.DisableCompression = true
	config.WarningHandlerWithContext = rest.NoWarnings{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		boundHeaders(next)
		return &bounded{next, left}
	})
}

// meteredConn ends when its runtime sends more than allowed.
type meteredConn struct {
	net.Conn

	left *atomic.Int64
}

func (c *meteredConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.left.Add(-int64(n)) < 0 {
		_ = c.Close()
		return 0, errLargeAnswer
	}
	return n, err
}

// WithoutRedirects returns a copy of a client. A redirect could lead to any address that the
// operator reaches, also in plain text.
func WithoutRedirects(c *http.Client) *http.Client {
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

type bounded struct {
	http.RoundTripper

	left *atomic.Int64
}

// WrappedRoundTripper returns the transport with the connections (package util/net).
func (b *bounded) WrappedRoundTripper() http.RoundTripper { return b.RoundTripper }

func (b *bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	own := budgetOf(request.Context())
	own.begun.Do(func() { b.left.Store(maxRead) })
	response, err := b.RoundTripper.RoundTrip(acceptJSON(request))
	if err != nil {
		return nil, Error(err)
	}
	if err := checkType(response); err != nil {
		_ = response.Body.Close()
		return nil, err
	}
	body := &body{ReadCloser: response.Body, ctx: request.Context(), budget: own}
	response.Body = body
	if response.StatusCode >= http.StatusMultipleChoices {
		response.Body = cut{io.LimitReader(body, maxErrorBody), body}
	}
	return response, nil
}

// acceptJSON asks for JSON where a client prefers another form, as that of metadata does.
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
// and YAML with its aliases. The weight of an answer is that of JSON.
func checkType(response *http.Response) error {
	kind := response.Header.Get("Content-Type")
	media, _, err := mime.ParseMediaType(kind)
	if kind == "" || err == nil && (media == jsonType || strings.HasPrefix(media, "text/")) {
		return nil
	}
	return fmt.Errorf("want an answer of type %s, have %.80q", jsonType, kind)
}

type cut struct {
	io.Reader
	io.Closer
}

// body weighs JSON while it is read. A text that is no JSON weighs as much or less.
type body struct {
	io.ReadCloser

	ctx     context.Context //nolint:containedctx // It is that of the request.
	budget  *budget
	text    bool // inside a string
	escaped bool // by a backslash
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err := b.budget.spend(b.ctx, b.weigh(p[:n])); err != nil {
		return 0, err
	}
	if err != nil && err != io.EOF { //nolint:errorlint // io.Reader
		err = Error(err)
	}
	return n, err
}

// weigh counts the values of objects and lists that begin in part, too.
func (b *body) weigh(part []byte) (weight int64) {
	weight = byteWeight * int64(len(part))
	for _, c := range part {
		switch {
		case c >= utf8.RuneSelf:
			weight += otherWeight - byteWeight
			b.escaped = false
		case b.escaped:
			b.escaped = false
		case b.text && c == '\\':
			b.escaped = true
		case c == '"':
			b.text = !b.text
		case !b.text && (c == ',' || c == '{' || c == '['):
			weight += valueWeight
		}
	}
	return weight
}

const (
	// mostWeight bounds the answers of one reconcile. Those of about 300 Watchers fit, as three
	// answers have the whole webhook configuration.
	mostWeight = 32 << 20
	// smallWeight is the part of mostWeight that needs no slot of the process.
	smallWeight = 4 << 20
	// answerWeight bounds one answer outside a reconcile, as of an importer that uses the client.
	answerWeight = 16 << 20
	// largeSlots is the number of concurrent reconciles of a process that exceed smallWeight.
	largeSlots = 2

	// The weight of an answer is about the memory that takes to read and to decode it. An invalid
	// byte becomes a character of three.
	byteWeight, otherWeight, valueWeight = 4, 16, 256 // ASCII, beyond ASCII, a value beside its text
)

var errLargeAnswer = errors.New("answer is larger than allowed")

// Budgets bound the memory for answers of all runtimes in a process.
type Budgets struct{ large chan struct{} }

// NewBudgets returns budgets for a process.
func NewBudgets() *Budgets { return &Budgets{make(chan struct{}, largeSlots)} }

// Begin returns a context for the requests of one reconcile. Their answers share one budget. A
// reconcile with large answers waits while two others have large answers. Call end after the
// reconcile.
func (b *Budgets) Begin(ctx context.Context) (reconcile context.Context, end func()) {
	own := &budget{left: mostWeight, free: smallWeight, large: b.large}
	return context.WithValue(ctx, budgetKey{}, own), own.end
}

type budgetKey struct{}

type budget struct {
	mu         sync.Mutex
	left, free int64
	large      chan struct{} // nil: needs no slot
	holds      bool          // a slot
	begun      sync.Once     // by the first request
}

// budgetOf returns the budget of a reconcile, or one for a single answer.
func budgetOf(ctx context.Context) *budget {
	if own, ok := ctx.Value(budgetKey{}).(*budget); ok {
		return own
	}
	return &budget{left: answerWeight, free: answerWeight}
}

// spend waits for a slot if the budget needs one. Concurrent requests of one reconcile wait for the
// same slot.
func (b *budget) spend(ctx context.Context, weight int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left, b.free = b.left-weight, b.free-weight
	if b.left < 0 {
		return errLargeAnswer
	}
	if b.free >= 0 || b.holds || b.large == nil {
		return nil
	}
	select {
	case b.large <- struct{}{}:
		b.holds = true
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *budget) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holds {
		<-b.large
	}
	b.holds, b.left = false, 0
}
