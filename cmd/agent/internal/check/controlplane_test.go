package check

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
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
