package listener

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/listener/internal/xfcc"
)

const (
	relayDialTimeout = 2 * time.Second
	// relayGrace is the time of a relayed request beyond HandleTimeout. So the answer of a leader
	// that has used all of HandleTimeout still arrives.
	relayGrace       = relayDialTimeout
	relayIdleConns   = 64
	relayIdleTimeout = 90 * time.Second
	// maxRelayed bounds the bytes of an answer. One that names every event of a batch is smaller.
	maxRelayed = 64 << 10
	// relayLogEvery is the shortest time between two log lines about failures.
	relayLogEvery = time.Minute
	// relayPatience is the time of failures after which the connections of runtimes are closed.
	relayPatience = 30 * time.Second
)

var (
	errNoLeader   = errors.New("relay: no replica is known to lead")
	errLongAnswer = errors.New("relay: the answer of the leader is too long")
	errDistrusted = errors.New("relay: the leader refuses the certificates")
)

// relayClient sends requests to the replica that leads.
type relayClient struct {
	presented func(r *http.Request) ([]*x509.Certificate, error)
	leader    func() string
	timeout   time.Duration
	transport *http.Transport
	logger    *slog.Logger // for failures
	now       func() time.Time
	// failing is the time of the first failure since a success, in nanoseconds since 1970, or 0.
	failing atomic.Int64
}

func newRelayClient(peers Peers, opts Options) *relayClient {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &relayClient{
		presented: peers.presented,
		leader:    opts.Relay.Leader,
		timeout:   opts.HandleTimeout + relayGrace,
		logger:    pacedlog.New(opts.Logger, relayLogEvery),
		now:       opts.Now,
		// HTTP/1.1 takes less processor time for small requests than HTTP/2.
		transport: &http.Transport{
			Protocols:           protocols,
			DialTLSContext:      dialLeader(opts.Relay.Client),
			DisableCompression:  true,
			MaxIdleConnsPerHost: relayIdleConns,
			IdleConnTimeout:     relayIdleTimeout,
		},
	}
}

// dialLeader returns a function that connects with the present configuration.
func dialLeader(
	config func() (*tls.Config, error),
) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		present, err := config()
		if err != nil {
			return nil, fmt.Errorf("relay: TLS configuration: %w", err)
		}
		ctx, cancel := context.WithTimeout(ctx, relayDialTimeout)
		defer cancel()
		present = present.Clone()
		present.NextProtos = nil // The transport speaks HTTP/1.1 only.
		dialer := &tls.Dialer{Config: present}
		return dialer.DialContext(ctx, network, address)
	}
}

// passedAnswer is an answer of the leader.
type passedAnswer struct {
	status int
	// reason is that of the body, for metrics and logs.
	reason            string
	retryAfter, allow string
	contentType       string
	body              []byte
}

// send makes one request to the leader. The body is copied. The request does not end when its
// sender goes away, because that would close the connection to the leader.
func (c *relayClient) send(x *exchange, manager core.Manager, body []byte) (*passedAnswer, error) {
	leader := c.leader()
	if leader == "" {
		return nil, errNoLeader
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.request.Context()), c.timeout)
	defer cancel()
	request, err := c.request(ctx, "https://"+leader+x.version.Path(manager), x, body)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	response, err := c.transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	defer response.Body.Close()
	return readPassed(response)
}

// request returns the request to the leader. It has no header of the sender.
func (c *relayClient) request(ctx context.Context, target string, x *exchange, body []byte) (*http.Request, error) {
	certs, err := c.presented(x.request)
	if err != nil {
		return nil, fmt.Errorf("certificate of the runtime: %w", err)
	}
	header, err := xfcc.Encode(certs)
	if err != nil {
		return nil, fmt.Errorf("certificate of the runtime: %w", err)
	}
	// A transport may read a body after its answer.
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(bytes.Clone(body)))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", x.version.ContentType())
	request.Header.Set(HeaderXFCC, header)
	return request, nil
}

// readPassed reads an answer of the leader. Its refusal of this replica is not for the runtime.
func readPassed(response *http.Response) (*passedAnswer, error) {
	body, err := io.ReadAll(io.LimitReader(response.Body, maxRelayed+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("relay: answer of the leader: %w", err)
	case len(body) > maxRelayed:
		return nil, errLongAnswer
	}
	decoded := contract.DecodeAnswer(response.StatusCode, body, 0)
	if response.StatusCode == http.StatusUnauthorized && decoded.Reason == reasons.Unauthenticated {
		return nil, errDistrusted
	}
	return &passedAnswer{
		status:      response.StatusCode,
		reason:      cmp.Or(decoded.Reason, reasonForeign),
		retryAfter:  response.Header.Get("Retry-After"),
		allow:       response.Header.Get("Allow"),
		contentType: response.Header.Get("Content-Type"),
		body:        body,
	}, nil
}

// reasonForeign is the reason of an answer that no listener wrote.
const reasonForeign = "foreign_answer"

// write sends the answer to the runtime as it came.
func (p *passedAnswer) write(w http.ResponseWriter) {
	for name, value := range map[string]string{
		"Retry-After": p.retryAfter, "Allow": p.allow, "Content-Type": p.contentType,
	} {
		if value != "" {
			w.Header().Set(name, value)
		}
	}
	w.WriteHeader(p.status)
	_, _ = w.Write(p.body) // It fails when the sender is gone.
}

// noteFailed returns for how long no request was relayed. It logs the first failure, and then one
// a minute.
func (c *relayClient) noteFailed(ctx context.Context, err error) time.Duration {
	now := c.now().UnixNano()
	c.failing.CompareAndSwap(0, now)
	c.logger.LogAttrs(ctx, slog.LevelWarn, "a request was not relayed", slog.Any("error", err))
	// Another request may have succeeded meanwhile.
	return time.Duration(now - cmp.Or(c.failing.Load(), now))
}

// noteSent ends a time of failures.
func (c *relayClient) noteSent() {
	if c.failing.Load() != 0 {
		c.failing.Store(0)
	}
}

// close closes the connections without a request.
func (c *relayClient) close() { c.transport.CloseIdleConnections() }
