package check

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestUntrusted has the errors by which a server refuses a client certificate, and two that look alike.
func TestUntrusted(t *testing.T) {
	const refused, other = "a control plane that accepts TLS_CERT", "TLS"
	write := &net.OpError{Op: "write", Err: os.NewSyscallError("write", syscall.EPIPE)}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"alert":             {&net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}, refused},
		"NATS, alert":       {fmt.Errorf("%w: %w", nats.ErrTLS, &net.OpError{Op: "remote error"}), refused},
		"NATS, write":       {fmt.Errorf("%w: closed: %w", nats.ErrTLS, write), refused},
		"NATS, reset":       {fmt.Errorf("%w: closed: %w", nats.ErrTLS, syscall.ECONNRESET), refused},
		"NATS, end":         {fmt.Errorf("%w: closed: %w", nats.ErrTLS, io.EOF), refused},
		"end":               {io.EOF, other},
		"TLS 1.2 of a NATS": {fmt.Errorf("%w: protocol version not supported", nats.ErrTLS), "TLS 1.3"},
	} {
		if got := untrusted(c.err).want; got != c.want {
			t.Errorf("%s: want %q, got %q", name, c.want, got)
		}
	}
}

// answered is the answer of a listener.
type answered string

func (answered) Error() string    { return "refused" }
func (a answered) Answer() string { return string(a) }

// The action follows from the kind of the error. Its text decides nothing.
func TestActionOfARefusal(t *testing.T) {
	t.Parallel()
	for action, refused := range map[string]struct {
		reason string
		err    error
	}{
		"make the SAN of TLS_CERT":    {"forbidden", answered("san_mismatch")},
		"correct the annotation":      {"forbidden", answered("domain_missing")},
		"of the other runtime":        {"forbidden", answered("domain_ambiguous")},
		"check the name":              {"forbidden", errors.New("san_mismatch, domain_missing, violation")},
		"add this manager":            {"forbidden", fmt.Errorf("%w: detail", nats.ErrPermissionViolation)},
		"or start the operator":       {"unknown_manager", fmt.Errorf("%w: detail", jetstream.ErrNoStreamResponse)},
		"or the label managed-by":     {"unknown_manager", errors.New("natsjetstream")},
		"see the log of the listener": {"new", io.EOF},
	} {
		if got := refusal("kyma", refused.reason, refused.err).action; !strings.Contains(got, action) {
			t.Errorf("%s: %v leads to %q, want %q", refused.reason, refused.err, got, action)
		}
	}
}
