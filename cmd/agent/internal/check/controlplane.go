package check

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
	"github.com/runtime-watcher/runtime-watcher/internal/proxy"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/connect"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/gateway"
)

func (c *checker) checkControlPlane(ctx context.Context, link Link) {
	to := connect.Target{Address: c.opts.To.Address, ServerName: c.opts.ControlPlane.ServerName}
	through, ok := c.checkProxy()
	if !ok {
		c.skip("the proxy cannot be used", "connection", "TLS", "clock", "heartbeat")
		return
	}

	if through != nil {
		c.dial = through.DialContext
		to.Dial = c.dial
	}

	conn, err := connect.TCP(ctx, to)
	failed, ofProxy := errors.AsType[*proxy.Error](err)
	switch {
	case ofProxy:
		c.failFor("proxy", failed, lapsed())
		c.skip("no way through the proxy", "connection", "TLS", "clock", "heartbeat")
		return
	case err != nil:
		c.failFor("connection", err, unreachable())
		c.skip("no connection", "TLS", "clock", "heartbeat")
		return
	case through != nil:
		c.ok("proxy", "%s connects to %s", through.Address(), to.Address)
		c.ok("connection", "%s, through the proxy", to.Address)
	default:
		c.ok("connection", "%s, at %s", to.Address, conn.RemoteAddr())
	}

	if c.client == nil {
		_ = conn.Close()
		c.skip("the key material cannot be used", "TLS", "clock", "heartbeat")
		return
	}

	if link != nil {
		_ = conn.Close() // With NATS, a line of the server precedes the handshake.
		c.checkServer(ctx, link)
		return
	}

	if err := connect.TLS(ctx, conn, c.client, to); err != nil {
		c.failFor("TLS", err, untrusted())
		c.skip("no TLS connection", "clock", "heartbeat")
		return
	}

	c.ok("TLS", "the certificate of %s is trusted, and it accepts TLS_CERT", to.Address)
	c.compareClock(ctx, to)
	c.checkHeartbeats(ctx, core.ForwarderFunc(c.sendOnce))
}

// mostSkew is less than the lifetime of any certificate, and more than the skew that NTP leaves.
const mostSkew = time.Minute

func (c *checker) compareClock(ctx context.Context, to connect.Target) {
	ahead, err := connect.ClockSkew(ctx, c.client, to)
	switch {
	case err != nil:
		c.skip("the control plane does not answer with its time", "clock")
	case ahead.Abs() > mostSkew:
		direction := "ahead of"
		if ahead < 0 {
			direction = "behind"
		}
		c.warn("clock", fmt.Sprintf("%v %s the control plane", ahead.Abs(), direction), "less than "+mostSkew.String(),
			"correct the clock of this node, or that of the control plane")
	default:
		c.ok("clock", "the clocks of this node and of the control plane agree")
	}
}

// checkProxy returns the dialer through the proxy, or nil without a proxy.
func (c *checker) checkProxy() (through *proxy.Dialer, ok bool) {
	to := c.opts.ControlPlane
	if to.Proxy == "" {
		return nil, true
	}

	const want, action = "http://host:port", "correct CONTROL_PLANE_PROXY or HTTPS_PROXY"
	through, err := proxy.New(proxy.Options{Address: to.Proxy, Credentials: to.ProxyCredentials})
	if err != nil {
		c.fail("proxy", err.Error(), want, action)
		return nil, false
	}
	return through, true
}

func lapsed() []advice {
	const way = "a way through the proxy to CONTROL_PLANE_ADDRESS"
	const user = "check the user and the password in CONTROL_PLANE_PROXY_CREDENTIALS or HTTPS_PROXY"
	const rules = "let the proxy allow CONNECT to the host and port of CONTROL_PLANE_ADDRESS"
	const behind = "check CONTROL_PLANE_ADDRESS, and that the proxy resolves and reaches it"
	const name = "check CONTROL_PLANE_PROXY or HTTPS_PROXY, and the DNS of this cluster"
	const down = "check that the proxy runs, CONTROL_PLANE_PROXY or HTTPS_PROXY, and the network policy"

	return []advice{
		{isA[*fs.PathError], "a file with user:password", "mount it, or correct CONTROL_PLANE_PROXY_CREDENTIALS"},
		{because(proxy.ReasonUnauthorized), way, user},
		{because(proxy.ReasonRefused), way, rules},
		{because(proxy.ReasonUpstream), way, behind},
		{isA[*net.DNSError], "a name of the proxy that resolves", name},
		{isAny, way, down},
	}
}

func (c *checker) checkServer(ctx context.Context, link Link) {
	over, stop, err := link()
	if err != nil {
		c.failFor("TLS", err, untrusted())
		c.skip("no connection to the NATS server", "heartbeat")
		return
	}
	defer stop()

	c.ok("TLS", "the certificate of the NATS server is trusted, and it has a user for TLS_CERT")
	c.checkHeartbeats(ctx, over)
}

func unreachable() []advice {
	return []advice{
		{isA[*net.DNSError], "a host name that resolves", "check CONTROL_PLANE_ADDRESS, and the DNS of this cluster"},
		{isAny, "an open port", "check CONTROL_PLANE_ADDRESS, the listener or gateway, and the network policy"},
	}
}

func untrusted() []advice {
	const hello = "; a NATS server with handshake_first needs NATS_HANDSHAKE_FIRST=true"
	const late = "a TLS handshake within 10s"
	const port = "check that the port of CONTROL_PLANE_ADDRESS serves TLS, and the network; " +
		"if the path drops a ClientHello above 1,400 bytes, set GODEBUG=tlsmlkem=0" + hello
	const first = "check the port in CONTROL_PLANE_ADDRESS, the gateway, and its limits" + hello
	const user = "add the user of this runtime to the configuration of the NATS server, and reload it"
	const refused = "check the CA bundle of the listener or gateway, the validity of TLS_CERT, " +
		"and the clocks of both ends"
	const name = "correct CONTROL_PLANE_ADDRESS, or set CONTROL_PLANE_SERVER_NAME"
	const clock = "correct the clock of this node if date -u is wrong there, otherwise renew the certificate"
	const otherCA = "correct CA_CERT, or CONTROL_PLANE_ADDRESS if it names another host"

	return []advice{
		{is(nats.ErrAuthorization), "a user with a SAN of TLS_CERT as its name", user},
		{isA[x509.HostnameError], "a certificate for the name of the control plane", name},
		{isNotValidNow, "a certificate that is valid now", clock},
		{isA[*tls.CertificateVerificationError], "a certificate that CA_CERT issued", otherCA},
		{isRemote, "a control plane that accepts TLS_CERT", refused},
		{is(context.DeadlineExceeded), late, port},
		{is(os.ErrDeadlineExceeded), late, port},
		{
			isA[tls.RecordHeaderError], "TLS",
			"check the port in CONTROL_PLANE_ADDRESS: this one speaks another protocol",
		},
		{is(io.EOF), "TLS", first},
		{is(nats.ErrTimeout), late, port},
		{isAny, "TLS 1.3", "check the port in CONTROL_PLANE_ADDRESS, and the TLS versions of the gateway" + hello},
	}
}

// isNotValidNow reports whether a certificate of the other end has expired or is not valid yet. The
// certificate may be valid nevertheless, because the clock of this node decides.
func isNotValidNow(err error) bool {
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	return ok && invalid.Reason == x509.Expired
}

// isRemote reports whether the other end refused: by a TLS alert, or by the end of a connection. In
// TLS 1.3 a server judges the client certificate after the handshake of the client. A NATS client
// that writes at that moment finds the connection closed before it has read the alert.
func isRemote(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	isAlert := ok && op.Op == "remote error"
	if isAlert {
		return true
	}

	isClosed := errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)
	return isClosed && errors.Is(err, nats.ErrTLS)
}

func (c *checker) checkHeartbeats(ctx context.Context, over core.Forwarder) {
	switch {
	case !c.opts.Contract.Numbered():
		c.skip(fmt.Sprintf("contract %s has none: only an event shows an answer", c.opts.Contract), "heartbeat")
		return
	case len(c.known) == 0:
		c.skip("no manager is known", "heartbeat")
		return
	}

	answers := make([]error, len(c.known))
	var sending sync.WaitGroup
	for i, manager := range c.known {
		sending.Go(func() { answers[i] = c.sendHeartbeat(ctx, over, manager) })
	}

	sending.Wait()
	for i, manager := range c.known {
		c.reportAnswer(ctx, manager, answers[i])
	}
}

// Replicas that do not lead answer "not ready", so another connection may reach another replica.
const (
	attempts = 3
	pause    = time.Second
)

func (c *checker) sendHeartbeat(ctx context.Context, over core.Forwarder, manager core.Manager) (err error) {
	for range attempts {
		err = over.Forward(ctx, manager, c.newProbe())
		if refused, ok := errors.AsType[core.EventErrors](err); ok {
			err = refused[0] // The error of the heartbeat, because there is no event.
		}
		if err == nil || core.ReasonOf(err) != reasons.NotReady {
			return err
		}

		periodic.Pause(ctx, pause)
	}
	return err
}

func (c *checker) sendOnce(ctx context.Context, manager core.Manager, batch core.Batch) error {
	to := c.opts.ControlPlane
	forwarder, err := httpmtls.NewForwarder(c.client, c.opts.To.Address, c.opts.Contract, httpmtls.Options{
		ServerName: to.ServerName, Protocol: to.Protocol, Timeout: c.opts.Outbox.ForwardTimeout,
		UserAgent: "runtime-watcher-check", DialContext: c.dial,
	})
	if err != nil {
		return err
	}
	defer forwarder.Close() // It returns nil.

	return forwarder.Forward(ctx, manager, batch)
}

// newProbe begins and ends an epoch without events, so that a fleet adds no replica.
func (c *checker) newProbe() core.Batch {
	epoch := "check-" + rand.Text()
	return core.Batch{Epoch: epoch, Heartbeat: &core.Heartbeat{
		ID: epoch + "-heartbeat-1", Time: time.Now(), Number: 1, Leaving: true,
		Interval: max(c.opts.Outbox.HeartbeatInterval, outbox.Defaults().HeartbeatInterval),
		Instance: c.opts.Instance + "/check", Version: c.opts.Version,
	}}
}

func (c *checker) reportAnswer(ctx context.Context, manager core.Manager, err error) {
	const name = "heartbeat"
	reason := core.ReasonOf(err)
	switch {
	case err == nil:
		c.ok(name, "manager %s acknowledges contract %s", manager, c.opts.Contract)
	case ctx.Err() != nil:
		c.fail(name, fmt.Sprintf("no answer before the checks ended after %v", timeout), "an answer",
			"check the load of the control plane")
	case c.opts.ControlPlane.Fallback != "" && gateway.Denied(err):
		c.warn(name, err.Error(), "contract v3", "let the policy of the gateway allow /v3/ and this sender: "+
			"with CONTRACT_FALLBACK, events arrive only if the policy allows /v2/")
	case reason == reasons.UnknownContract && c.opts.ControlPlane.Fallback != "":
		c.warn(name, err.Error(), "contract v3", "CONTRACT_FALLBACK is in use, without heartbeats")
	default:
		c.failFor(name, fmt.Errorf("manager %s: %s: %w", manager, cmp.Or(reason, "refused"), err), refused())
	}
}

func refused() []advice {
	const want = "202 Accepted"

	violation := is(nats.ErrPermissionViolation)
	noStream := is(jetstream.ErrNoStreamResponse)
	return []advice{
		{
			forbidden(reasons.SANMismatch), want,
			"make the SAN of TLS_CERT equal to the domain of this runtime in the control plane",
		},
		{
			forbidden(reasons.CAMismatch), want,
			"issue TLS_CERT from the CA that the control plane allows for this runtime, or correct its list of CAs",
		},
		{
			forbidden(reasons.Revoked), want,
			"the control plane has revoked this certificate: issue TLS_CERT with a new key, " +
				"or ask the owner of the list",
		},
		{forbidden("domain_ambiguous"), want, "correct the domain annotation of the other runtime with this domain"},
		{forbidden("domain_"), want, "correct the domain annotation of this runtime in the control plane"},
		{forbidden(reasons.SourceMismatch), want, "issue TLS_CERT with the id of this runtime as Common Name"},
		{violation, want, "add this manager to the user of this runtime, and reload the NATS server"},
		{
			because(reasons.Forbidden), want,
			"check the name of this runtime and its domain annotation in the control plane",
		},
		{because(reasons.Unauthenticated), want, "check the CA bundle of the listener, and the header of the gateway"},
		{noStream, want, "correct MANAGERS, or start the operator, which creates the stream"},
		{because(reasons.UnknownManager), want, "correct MANAGERS, or the manager of the Watcher"},
		{
			because(reasons.UnknownContract), want,
			"route /v3/ at the gateway, update the listener or set CONTRACT_FALLBACK",
		},
		{
			gateway.Denied, want, "let the policy of the gateway allow /v3/ and this sender: " +
				"CONTRACT_FALLBACK helps only if the policy allows /v2/",
		},
		{because(reasons.GatewayRefused), want, "check the CA bundle of the gateway"},
		{because(reasons.NotReady), want, "check that a replica of the operator leads and is ready"},
		{because(reasons.TooFast), want, "this runtime sends more than its share: check again later"},
		{because(core.ReasonTimeout), want, "check the load of the operator and the network, or raise FORWARD_TIMEOUT"},
		{because(httpmtls.ReasonConnection), want, "check the gateway and the network, and check again"},
		{because(httpmtls.ReasonTLSRefused), want, "check the CA bundle of the listener, and the validity of TLS_CERT"},
		{isAny, want, "see the log of the listener"},
	}
}
