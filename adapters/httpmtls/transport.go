package httpmtls

import (
	"crypto/tls"
	"io"
	"net/http"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/runtime-watcher/runtime-watcher/keys"
)

const (
	// maxHeader bounds the header of an answer, in bytes.
	maxHeader = 64 << 10
	// headerTable bounds the headers of earlier requests that the server has to remember (RFC 7541,
	// section 4.2), in bytes. No header fits. It saves the server 4 KiB per connection.
	headerTable = 1
	// writeBuffer is the size in bytes of the largest record of TLS, so that a usual batch is one
	// record and one system call. With its default of 4 KiB, net/http would also allocate 32 KiB
	// for the rest of a larger batch.
	writeBuffer = 16 << 10
)

// newPool fails if the material lacks a part.
func newPool(material *keys.Material, header http.Header, opts Options) (*pool, error) {
	config, err := keys.ClientTLSConfig(material, opts.ServerName)
	if err != nil {
		return nil, err
	}

	p := &pool{
		material: material, conns: map[*trackedConn]struct{}{}, hooks: opts.Hooks,
		suspects: opts.suspects, log: opts.handshakeLog,
	}
	p.transport = newTransport(config, p.newDial(opts), opts)
	p.client = newClient(p, header, opts)
	return p, nil
}

// newTransport returns a transport with limits, which does not use the environment.
func newTransport(config *tls.Config, dial dialFunc, opts Options) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(opts.Protocol == http2)

	return &http.Transport{
		Proxy:               opts.Proxy,
		DialContext:         dial,
		TLSClientConfig:     config,
		TLSHandshakeTimeout: opts.DialTimeout,
		DisableCompression:  true,
		// One host, so these are limits of the pool.
		MaxConnsPerHost:        opts.maxConnections(),
		MaxIdleConnsPerHost:    opts.maxConnections(),
		IdleConnTimeout:        opts.IdleTimeout,
		WriteBufferSize:        writeBuffer,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              protocols,
		HTTP2: &http.HTTP2Config{
			MaxEncoderHeaderTableSize: headerTable,
			SendPingTimeout:           opts.pingAfter,
			PingTimeout:               opts.PingTimeout,
			WriteByteTimeout:          opts.Timeout,
		},
	}
}

// maxConnections returns 1 with HTTP/2, so that concurrent first requests share one dial.
func (o Options) maxConnections() int {
	if o.Protocol == http1 {
		return o.InFlight
	}
	return 1
}

// newClient retries a few times within [Options.Timeout]. The outbox does all longer waits.
func newClient(pool *pool, header http.Header, opts Options) *retryablehttp.Client {
	// A redirect is an answer like any other: following it could leak the event.
	keepRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &retryablehttp.Client{
		HTTPClient:   &http.Client{Transport: keepAlive{pool, header}, CheckRedirect: keepRedirect},
		RetryMax:     max(opts.Retries, 0),
		RetryWaitMin: opts.retryWait / 2,
		RetryWaitMax: opts.retryWait,
		CheckRetry:   opts.checkRetry,
		Backoff:      opts.reportRetry,
		// The last answer is judged by the forwarder, as any other.
		ErrorHandler: retryablehttp.PassthroughErrorHandler,
	}
}

// keepAlive is a transport that keeps its connections after failures. It hides
// CloseIdleConnections, which retryablehttp calls after the last attempt. Otherwise, each request
// that ends in 503 would cost a handshake.
//
// It also sets the header, because [http.Client] clones the header of each request, for redirects.
type keepAlive struct {
	pool   *pool
	header http.Header
}

func (k keepAlive) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx, shake := k.pool.followHandshake(request.Context())
	request = request.WithContext(ctx) // The given one must not be changed.
	request.Header = k.header

	answer, err := k.pool.transport.RoundTrip(request)
	if err != nil {
		return nil, shake.explainError(err)
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

// Close reads at most maxDrained bytes and closes the body.
func (b drainedBody) Close() error {
	_, _ = io.CopyN(io.Discard, b.ReadCloser, maxDrained) // If it fails, the connection is not reused.
	return b.ReadCloser.Close()
}
