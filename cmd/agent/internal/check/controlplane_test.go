package check

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/internal/testcache"
)

// TestUntrusted has the errors by which a server refuses a client certificate, and others that look
// alike. A certificate that is not valid now has its own advice, because a wrong clock explains it.
func TestUntrusted(t *testing.T) {
	const refused, other = "a control plane that accepts TLS_CERT", "TLS"
	const current, issued = "a certificate that is valid now", "a certificate that CA_CERT issued"
	verification := func(err error) error { return &tls.CertificateVerificationError{Err: err} }
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
		"expired, or early": {verification(x509.CertificateInvalidError{Reason: x509.Expired}), current},
		"another CA":        {verification(x509.UnknownAuthorityError{}), issued},
		"other usage":       {verification(x509.CertificateInvalidError{Reason: x509.IncompatibleUsage}), issued},
		"TLS 1.2 of a NATS": {fmt.Errorf("%w: protocol version not supported", nats.ErrTLS), "TLS 1.3"},
	} {
		if got := first(untrusted(), c.err).want; got != c.want {
			t.Errorf("%s: want %q, got %q", name, c.want, got)
		}
	}
}

// answered is the answer of a listener.
type answered string

func (answered) Error() string    { return "refused" }
func (a answered) Answer() string { return string(a) }

// reasoned is the error of a transport.
type reasoned struct {
	error

	reason string
}

func (r reasoned) Reason() string { return r.reason }
func (r reasoned) Unwrap() error  { return r.error }

// The end of a connection has no words of its own. The place stays.
func TestEndOfAConnection(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]string{
		io.EOF:                                  "TLS the other end closed the connection without an answer; want",
		fmt.Errorf("to tls://nats: %w", io.EOF): "TLS to tls://nats: the other end closed the connection without an answer; want",
		io.ErrUnexpectedEOF:                     "TLS unexpected EOF; want",
	} {
		var out strings.Builder
		(&report{out: &out}).failFor("TLS", err, untrusted())
		if got := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The action follows from the kind of the error. Its text decides nothing.
func TestActionOfARefusal(t *testing.T) {
	t.Parallel()
	for action, err := range map[string]reasoned{
		"make the SAN of TLS_CERT":              {answered("san_mismatch"), "forbidden"},
		"correct the domain annotation of this": {answered("domain_missing"), "forbidden"},
		"or correct its list of CAs":            {answered("ca_mismatch"), "forbidden"},
		"issue TLS_CERT with a new key":         {answered("revoked"), "forbidden"},
		"of the other runtime":                  {answered("domain_ambiguous"), "forbidden"},
		"check the name":                        {errors.New("san_mismatch, domain_missing, violation"), "forbidden"},
		"add this manager":                      {fmt.Errorf("%w: detail", nats.ErrPermissionViolation), "forbidden"},
		"or start the operator":                 {fmt.Errorf("%w: detail", jetstream.ErrNoStreamResponse), "unknown_manager"},
		"or the manager of the Watcher":         {errors.New("natsjetstream"), "unknown_manager"},
		"CONTRACT_FALLBACK helps only if":       {fmt.Errorf("%w: %q", core.ErrForbidden, "RBAC: access denied"), "gateway_refused"},
		"check the CA bundle of the gateway":    {errors.New("400 in HTML"), "gateway_refused"},
		"see the log of the listener":           {io.EOF, "new"},
	} {
		if got := first(refused(), fmt.Errorf("manager kyma: %w", err)).action; !strings.Contains(got, action) {
			t.Errorf("%s: %v leads to %q, want %q", err.reason, err, got, action)
		}
	}
}

// A reason of SAN or CA pinning without its own advice would lead to the advice for a wrong name.
func TestEachReasonOfPinningHasAdvice(t *testing.T) {
	t.Parallel()
	path := testcache.Path("../../../../internal/reasons/pinning.go")
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}

	var all []string
	ast.Inspect(file, func(node ast.Node) bool {
		if text, ok := node.(*ast.BasicLit); ok {
			all = append(all, strings.Trim(text.Value, `"`))
		}
		return true
	})
	if !slices.Contains(all, reasons.CAMismatch) {
		t.Fatalf("%s has the reasons %q, want %s among them", path, all, reasons.CAMismatch)
	}

	byName := first(refused(), reasoned{answered("new"), reasons.Forbidden}).action
	for _, reason := range all {
		// The first is a 401. For the second, the owner in the event, the general advice is right.
		if reason == reasons.NoIdentity || reason == reasons.OwnerMissing {
			continue
		}
		if first(refused(), reasoned{answered(reason), reasons.Forbidden}).action == byName {
			t.Errorf("%s has no advice in refused: want one that says what to correct", reason)
		}
	}
}
