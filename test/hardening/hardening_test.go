// Package hardening attacks the real agent and a real listener, as processes, from their own
// network.
package hardening

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const (
	runtimeName = "runtime-1"
	domain      = "runtime-1.example.com"
	manager     = "widgets"

	// Attackers and legitimate clients have different addresses, as pods and API
	// servers do.
	attackers = "127.0.0.66"
	friends   = "127.0.0.2"

	// patience is the limit for steps that take milliseconds on a machine without an attack.
	patience = 2 * time.Minute
)

// scene is an agent with its control plane. The test is its API server.
type scene struct {
	t     *testing.T
	pki   *lab.PKI
	agent *lab.Agent

	mu    sync.Mutex
	names []string // of the changed objects
}

func newScene(t *testing.T, env map[string]string) *scene {
	t.Helper()
	needsProcesses(t)
	all := map[string]string{"KCP_CONTRACT": "v3", "SETTLE": "1ms", "LOG_LEVEL": "debug", "HEARTBEAT_INTERVAL": "1h"}
	maps.Copy(all, env)
	s := &scene{t: t, pki: lab.NewPKI(t)}
	plane := lab.StartPlane(t, s.pki, lab.PlaneOptions{Handler: core.HandlerFunc(s.handle)}, manager)
	s.agent = lab.StartAgent(t, s.pki.RuntimeVolume(runtimeName, domain), plane.Addr, lab.AgentOptions{Env: all})
	return s
}

func (s *scene) handle(_ context.Context, d core.Delivery) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = append(s.names, d.Event.Watched.Name)
	return nil
}

func needsProcesses(t *testing.T) {
	t.Helper()
	lab.SkipShort(t)
}

func (s *scene) webhook() string { return lab.Address(s.agent.WebhookPort) }

func (s *scene) metrics() string { return lab.Address(s.agent.MetricsPort) }

// dialFrom connects from a loopback address of choice.
func dialFrom(ctx context.Context, from, to string) (net.Conn, error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	return dialer.DialContext(ctx, "tcp", to)
}

// tlsFrom connects and shakes hands.
func tlsFrom(ctx context.Context, from, to string, config *tls.Config) (*tls.Conn, error) {
	conn, err := dialFrom(ctx, from, to)
	if err != nil {
		return nil, err
	}
	encrypted := tls.Client(conn, config)
	if err := encrypted.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return encrypted, nil
}

// trusting is the configuration of a client without certificate.
func (s *scene) trusting() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: s.pki.CA.Pool(), ServerName: "localhost"}
}

// friend returns a client that connects as an API server does.
func (s *scene) friend() *http.Client {
	transport := &http.Transport{
		TLSClientConfig: s.trusting(),
		DialContext: func(ctx context.Context, _, to string) (net.Conn, error) {
			return dialFrom(ctx, friends, to)
		},
	}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// send asks the agent about the creation of an object.
func (s *scene) send(client *http.Client, name string) error {
	return lab.Ask(s.t.Context(), client, "https://"+s.webhook()+"/validate/"+manager, lab.Review(name, 0))
}

// awaitEvent waits until the event of an object has reached the control plane.
func (s *scene) awaitEvent(name string) {
	s.t.Helper()
	lab.Eventually(s.t, patience, "the event of "+name+" reached the control plane", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.Contains(s.names, name)
	})
}

// usage has the resources of a process.
type usage struct{ files, kilobytes int }

func usageOf(t *testing.T, pid int) usage {
	t.Helper()
	dir := "/proc/" + strconv.Itoa(pid)
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		t.Fatalf("this system has no /proc: %v", err)
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		t.Fatal(err)
	}
	u := usage{files: len(files)}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmRSS:" {
			u.kilobytes, _ = strconv.Atoi(fields[1])
		}
	}
	return u
}
