package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/testcache"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// asProgram makes the test binary the program itself.
const asProgram = "TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func TestProgramPrintsTheShownTable(t *testing.T) {
	self := must(os.Executable())
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	cmd.Stdout = &stdout
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("ended with %v:\n%s\n%s", err, &stdout, &stderr)
	}
	document := must(os.ReadFile(testcache.Path("../../docs/security.md")))
	if !strings.Contains(string(document), "```\n"+stdout.String()+"```\n") {
		t.Errorf("docs/security.md must contain:\n%s", &stdout)
	}
}

// TestEachPartIsMissed holds that each part of the verifier is needed: the program names the senders
// with an unexpected answer.
func TestEachPartIsMissed(t *testing.T) {
	pinned := listener.SANPinning
	for name, c := range map[string]struct {
		verify  verifierFor
		senders []string
	}{
		"no pinning": {func(listener.Domains) core.Verifier { return listener.InsecureAllowAll() }, []string{
			"runtime-a, a.example.com, asking for owner runtime-b", "runtime-b, a.example.com, asking",
			"runtime-b, *.example.com", "runtime-b, no SAN", "runtime-x", "runtime-d",
		}},
		"no suspension": {func(now listener.Domains) core.Verifier {
			return listener.AnyOf(pinned(now), pinned(before()))
		}, []string{"runtime-d"}},
		"no move": {func(now listener.Domains) core.Verifier {
			return listener.AllOf(pinned(now), core.VerifierFunc(notSuspended))
		}, []string{"runtime-c"}},
		"no verifier": {func(listener.Domains) core.Verifier { return listener.AllOf() }, []string{
			"asking for source runtime-a", "runtime-b, b", "runtime-c",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(t.Context(), &out, c.verify)
			if err == nil {
				t.Fatalf("no error:\n%s", &out)
			}
			for _, sender := range c.senders {
				if !strings.Contains(err.Error(), sender) {
					t.Errorf("no %q in: %v", sender, err)
				}
			}
			if strings.Contains(out.String(), "as expected") {
				t.Errorf("no error in the output:\n%s", &out)
			}
		})
	}
}

func TestEndsWhenItIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, new(bytes.Buffer), verifier); err == nil {
		t.Error("ended with nil, want an error")
	}
}

// rotating is key material that a test replaces.
type rotating struct {
	atomic.Pointer[keys.Material]
}

func (r *rotating) Material() (*keys.Material, error) { return r.Load(), nil }

// TestRemovedCALosesItsConnection holds that the removal of a CA also concerns open connections.
func TestRemovedCALosesItsConnection(t *testing.T) {
	pki := newPKI()
	material := &rotating{}
	material.Store(pki.material)
	s := must(startScene(t.Context(), pki, material, verifier))
	attempt := pki.attempts()[0]
	transport := &http.Transport{TLSClientConfig: pki.clientConfig(attempt.sender), MaxConnsPerHost: 1}
	dials := 0
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		dials++
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	kept := false
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{PutIdleConn: func(err error) { kept = err == nil }})
	for tries := 0; !kept && tries < 100; tries++ { // One, unless net/http closes the connection on a busy machine.
		if status, err := s.sendEvent(ctx, transport, attempt); err != nil || status != http.StatusAccepted {
			t.Fatalf("status %d, want %d: %v", status, http.StatusAccepted, err)
		}
	}
	before := dials
	material.Store(&keys.Material{Certificate: pki.material.Certificate, Roots: pki.another.Pool()})
	if status, err := s.sendEvent(t.Context(), transport, attempt); err != nil || status != http.StatusUnauthorized || dials != before {
		t.Errorf("status %d on connection %d, want %d on the last one, %d: %v", status, dials, http.StatusUnauthorized, before, err)
	}
	transport.CloseIdleConnections()
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}
