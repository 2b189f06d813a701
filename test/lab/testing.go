package lab

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

// NoError ends the test if there is an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Must returns the value of a call that does not fail in a test.
func Must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// Complaints counts the problems that a check reports, and fails no test. It shows that the check
// can fail.
type Complaints struct {
	testing.TB

	N int
}

// Helper implements [testing.TB].
func (*Complaints) Helper() {}

// Error implements [testing.TB].
func (c *Complaints) Error(...any) { c.N++ }

// Errorf implements [testing.TB].
func (c *Complaints) Errorf(string, ...any) { c.N++ }

// Missing ends a test on a machine that lacks a program or a right: it skips the test. It fails the
// test under CI=true, so that CI cannot skip it. The text names the Debian package.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}

	t.Skipf(format, args...)
}

// SkipShort skips a test under -short, because it starts API servers or other programs, or measures.
func SkipShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long: left out by -short")
	}
}

// Run calls start until stop, or until the end of the test. The test fails if start returns an
// error. stop waits for the end of start, and may be called again.
func Run(t testing.TB, name string, start func(context.Context) error) (stop func()) {
	t.Helper()

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := start(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}()

	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(stop)
	return stop
}

func loopback() []net.IP { return []net.IP{net.IPv4(127, 0, 0, 1)} }

// BothUsages returns the key usages of the certificate of an agent, which the agent presents to the
// control plane and to API servers.
func BothUsages() []x509.ExtKeyUsage {
	return []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
}

// FreePort returns a port of the loopback interface without a listener. No connection of this
// machine gets the port until the test ends. So a process of the test may close it and open it
// again.
func FreePort(t testing.TB) int {
	t.Helper()

	holder, port, err := machine.ReservePort()
	NoError(t, err)
	t.Cleanup(func() { _ = syscall.Close(holder) }) // It was bound only.

	return port
}

// Accepts reports whether a program accepts connections at an address.
func Accepts(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err == nil {
		_ = conn.Close() // It was only asked for.
	}
	return err == nil
}

// Address returns the loopback address with a port.
func Address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// Steps are the steps of a long test, with the time that each took and the time of day of its end. They
// are logged as a table.
type Steps struct {
	begun time.Time
	table []string
}

// NewSteps returns an empty list of steps. The first step begins now.
func NewSteps() *Steps { return &Steps{begun: time.Now()} }

// Done adds a step that has ended.
func (s *Steps) Done(format string, args ...any) {
	took := time.Since(s.begun)
	s.begun = s.begun.Add(took)
	row := fmt.Sprintf("%5.1f s until %s  ", took.Seconds(), s.begun.Format(time.TimeOnly))
	s.table = append(s.table, row+fmt.Sprintf(format, args...))
}

// Len returns the number of steps.
func (s *Steps) Len() int { return len(s.table) }

// Log logs the table.
func (s *Steps) Log(t testing.TB) {
	t.Helper()

	var table strings.Builder
	for n, step := range s.table {
		fmt.Fprintf(&table, "  %2d  %s\n", n+1, step)
	}

	t.Logf("steps:\n%s", table.String())
}

// Patience is the limit for a wait on an API server, a controller or a process, also on a busy machine.
const Patience = 5 * time.Minute

// Same fails the test unless two values are equal. Nil equals empty. The text describes the values.
func Same[T any](t testing.TB, what string, want, have T, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, have, append(opts, cmpopts.EquateEmpty())...); diff != "" {
		t.Errorf("%s (-want +have):\n%s", what, diff)
	}
}

// Says fails the test unless the text contains each part.
func Says(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s: want %q in\n%s", what, part, text)
		}
	}
}

// Fails fails the test unless err is an error with each part in its text.
func Fails(t testing.TB, what string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want one with %q", what, parts)
		return
	}

	Says(t, what, err.Error(), parts...)
}

// Stored reads an object, and returns it.
func Stored[T client.Object](t testing.TB, c client.Reader, key client.ObjectKey, object T) T {
	t.Helper()
	NoError(t, c.Get(t.Context(), key, object))
	return object
}

// Change reads an object and writes it, until no other writer has written it meanwhile.
func Change[T client.Object](t testing.TB, c client.Reader, object T, write func(T) error) {
	t.Helper()
	Eventually(t, Patience, fmt.Sprintf("%T %s can be changed", object, object.GetName()), func() bool {
		fresh, _ := object.DeepCopyObject().(T) // What was read before must not stay in it.
		return write(Stored(t, c, client.ObjectKeyFromObject(object), fresh)) == nil
	})
}
