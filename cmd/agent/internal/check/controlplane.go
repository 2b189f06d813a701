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
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/internal/connect"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// controlPlane checks the way to the control plane, from the name to the answer of its listener.
func (c *checker) controlPlane(ctx context.Context, link Link) {
	to := connect.Target{Address: c.opts.ControlPlane.Address, ServerName: c.opts.ControlPlane.ServerName}
	conn, err := connect.TCP(ctx, to)
	if err != nil {
		c.fail("connection", unreachable(err))
		c.skip("TLS", "no connection")
		c.skip("heartbeat", "no connection")
		return
	}
	c.ok("connection", "%s, at %s", to.Address, conn.RemoteAddr())
	if c.client == nil {
		_ = conn.Close()
		c.skip("TLS", "the key material cannot be used")
		c.skip("heartbeat", "the key material cannot be used")
		return
	}
	if link != nil {
		_ = conn.Close() // NATS begins with a line of the server, before the handshake.
		c.server(ctx, link)
		return
	}
	if err := connect.TLS(ctx, conn, c.client, to); err != nil {
		c.fail("TLS", untrusted(err))
		c.skip("heartbeat", "no TLS connection")
		return
	}
	c.ok("TLS", "the certificate of %s is trusted, and it accepts TLS_CERT", to.Address)
	c.heartbeats(ctx, core.ForwarderFunc(c.sendOnce))
}

// server checks the way through a NATS server, from the handshake to the answer of the operator.
func (c *checker) server(ctx context.Context, link Link) {
	over, stop, err := link()
	switch {
	case errors.Is(err, nats.ErrAuthorization):
		c.fail("TLS", finding{
			err.Error(), "a user with a SAN of TLS_CERT as its name",
			"add the user of this runtime to the configuration of the NATS server, and reload it",
		})
	case err != nil:
		c.fail("TLS", untrusted(err))
	default:
		defer stop()
		c.ok("TLS", "the certificate of the NATS server is trusted, and it has a user for TLS_CERT")
		c.heartbeats(ctx, over)
		return
	}
	c.skip("heartbeat", "no connection to the NATS server")
}

func unreachable(err error) finding {
	f := finding{err.Error(), "an open port", "check KCP_ADDR, the listener or gateway, and the network policy"}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		f.want, f.action = "a host name that resolves", "check KCP_ADDR, and the DNS of this cluster"
	}
	return f
}

func untrusted(err error) finding {
	f := finding{found: err.Error()}
	switch {
	case isA[x509.HostnameError](err):
		f.want, f.action = "a certificate for the name of the control plane", "correct KCP_ADDR, or set KCP_SERVER_NAME"
	case isA[*tls.CertificateVerificationError](err):
		f.want, f.action = "a certificate that CA_CERT issued", "correct CA_CERT, or KCP_ADDR if it names another host"
	case isRemote(err):
		f.want = "a control plane that accepts TLS_CERT"
		f.action = "check the CA bundle of the listener or gateway, and the validity of TLS_CERT"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		f.want, f.action = "a TLS handshake within 10s", "check that the port of KCP_ADDR serves TLS, and the network"
	case isA[tls.RecordHeaderError](err):
		f.want, f.action = "TLS", "check the port in KCP_ADDR: this one speaks another protocol"
	case errors.Is(err, io.EOF):
		f.found, f.want = "the other end closed the connection without an answer", "TLS"
		f.action = "check the port in KCP_ADDR, the gateway, and its limits"
	default:
		f.want, f.action = "TLS 1.3", "check the port in KCP_ADDR, and the TLS versions of the gateway"
	}
	return f
}

// isRemote reports whether the other end refused: by a TLS alert, or by the end of a connection.
// In TLS 1.3 a server judges the client certificate after the handshake of the client. A client of
// NATS that writes at that moment meets the closed connection before it has read the alert.
func isRemote(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	closed := errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)
	return ok && op.Op == "remote error" || errors.Is(err, nats.ErrTLS) && closed
}

func isA[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

func (c *checker) heartbeats(ctx context.Context, over core.Forwarder) {
	switch {
	case !c.opts.Contract.Numbered():
		c.skip("heartbeat", fmt.Sprintf("contract %s has none: only an event shows an answer", c.opts.Contract))
		return
	case len(c.known) == 0:
		c.skip("heartbeat", "no manager is known")
		return
	}
	answers := make([]error, len(c.known))
	var sending sync.WaitGroup
	for i, manager := range c.known {
		sending.Go(func() { answers[i] = c.send(ctx, over, manager) })
	}
	sending.Wait()
	for i, manager := range c.known {
		c.answer(ctx, manager, answers[i])
	}
}

// Replicas that do not lead answer "not ready", so another connection may reach another replica.
const (
	attempts = 3
	pause    = time.Second
)

// send tries again while the control plane is not ready.
func (c *checker) send(ctx context.Context, over core.Forwarder, manager core.Manager) (err error) {
	for range attempts {
		err = over.Forward(ctx, manager, c.probe())
		if refused, ok := errors.AsType[core.EventErrors](err); ok {
			err = refused[0] // That of the heartbeat, as there is no event.
		}
		if err == nil || core.Reason(err) != reasons.NotReady {
			return err
		}
		periodic.Pause(ctx, pause)
	}
	return err
}

func (c *checker) sendOnce(ctx context.Context, manager core.Manager, batch core.Batch) error {
	to := c.opts.ControlPlane
	forwarder, err := httpmtls.NewForwarder(c.client, to.Address, c.opts.Contract, httpmtls.Options{
		ServerName: to.ServerName, Protocol: to.Protocol, Timeout: c.opts.Outbox.ForwardTimeout,
		UserAgent: "runtime-watcher-check",
	})
	if err != nil {
		return err
	}
	defer forwarder.Close() // It returns nil.
	return forwarder.Forward(ctx, manager, batch)
}

// probe returns a heartbeat that begins and ends its own epoch, which has no events. A fleet
// acknowledges it, and adds no replica.
func (c *checker) probe() core.Batch {
	epoch := "check-" + rand.Text()
	return core.Batch{Epoch: epoch, Heartbeat: &core.Heartbeat{
		ID: epoch + "-heartbeat-1", Time: time.Now(), Number: 1, Leaving: true,
		Interval: max(c.opts.Outbox.HeartbeatInterval, outbox.Defaults().HeartbeatInterval),
		Instance: c.opts.Instance + "/check", Version: c.opts.Version,
	}}
}

func (c *checker) answer(ctx context.Context, manager core.Manager, err error) {
	name := "heartbeat"
	switch reason := core.Reason(err); {
	case err == nil:
		c.ok(name, "manager %s acknowledges contract %s", manager, c.opts.Contract)
	case ctx.Err() != nil:
		c.fail(name, finding{
			fmt.Sprintf("no answer before the checks ended after %v", timeout), "an answer",
			"check the load of the control plane",
		})
	case reason == reasons.UnknownContract && c.opts.ControlPlane.Fallback != "":
		c.warn(name, finding{err.Error(), "contract v3", "CONTRACT_FALLBACK is in use, without heartbeats"})
	default:
		c.fail(name, refusal(manager, reason, err))
	}
}

func refusal(manager core.Manager, reason string, err error) finding {
	action := "see the log of the listener"
	all := actions()
	if i := slices.IndexFunc(all, func(k known) bool { return k.is(reason, err) }); i >= 0 {
		action = all[i].action
	}
	return finding{
		fmt.Sprintf("manager %s: %s: %v", manager, cmp.Or(reason, "refused"), err), "202 Accepted", action,
	}
}

// known is the action for a reason. The answer of a listener begins with answer, and cause is in
// the chain of the error; empty: any.
type known struct {
	reason, answer string
	cause          error
	action         string
}

func (k known) is(reason string, err error) bool {
	type answered interface {
		error
		Answer() string
	}
	answer := ""
	if refused, ok := errors.AsType[answered](err); ok {
		answer = refused.Answer()
	}
	return k.reason == reason && strings.HasPrefix(answer, k.answer) && (k.cause == nil || errors.Is(err, k.cause))
}

func actions() []known {
	violation, noStream := nats.ErrPermissionViolation, jetstream.ErrNoStreamResponse
	return []known{
		{reasons.Forbidden, reasons.SANMismatch, nil, "make the SAN of TLS_CERT and the annotation skr-domain equal"},
		{reasons.Forbidden, "domain_ambiguous", nil, "correct skr-domain of the other runtime with this domain"},
		{reasons.Forbidden, "domain_", nil, "correct the annotation skr-domain of this runtime in the control plane"},
		{reasons.Forbidden, reasons.SourceMismatch, nil, "issue TLS_CERT with the id of this runtime as Common Name"},
		{reasons.Forbidden, "", violation, "add this manager to the user of this runtime, and reload the NATS server"},
		{reasons.Forbidden, "", nil, "check the name of this runtime and its annotation skr-domain"},
		{reasons.Unauthenticated, "", nil, "check the CA bundle of the listener, and the header of the gateway"},
		{reasons.UnknownManager, "", noStream, "correct MANAGERS, or start the operator, which creates the stream"},
		{reasons.UnknownManager, "", nil, "correct MANAGERS, or the label managed-by of the Watcher"},
		{reasons.UnknownContract, "", nil, "route /v3/ at the gateway, update the listener or set CONTRACT_FALLBACK"},
		{reasons.GatewayRefused, "", nil, "check the CA bundle of the gateway"},
		{reasons.NotReady, "", nil, "check that a replica of the operator leads and is ready"},
		{reasons.TooFast, "", nil, "this runtime sends more than its share: check again later"},
		{"timeout", "", nil, "check the load of the operator and the network, or raise FORWARD_TIMEOUT"},
		{"connection", "", nil, "check the gateway and the network, and check again"},
		{"tls_refused", "", nil, "check the CA bundle of the listener, and the validity of TLS_CERT"},
	}
}
