// Package hardening attacks the real agent and a real listener, as processes, from their own
// network.
package hardening

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"testing"
	"time"

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
	pki   *lab.PKI
	agent *lab.Agent
}

func newScene(t *testing.T, env map[string]string) *scene {
	t.Helper()
	lab.SkipShort(t)
	all := map[string]string{"KCP_CONTRACT": "v3", "SETTLE": "1ms", "LOG_LEVEL": "debug", "HEARTBEAT_INTERVAL": "1h"}
	maps.Copy(all, env)
	s := &scene{pki: lab.NewPKI(t)}
	plane := lab.StartPlane(t, s.pki, lab.PlaneOptions{}, manager)
	s.agent = lab.StartAgent(t, s.pki.RuntimeVolume(runtimeName, domain), plane.Addr, lab.AgentOptions{Env: all})
	return s
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

// dialAsFriend connects as an API server does, from elsewhere.
func dialAsFriend(ctx context.Context, _, to string) (net.Conn, error) {
	return dialFrom(ctx, friends, to)
}
