// Package hardening attacks the real agent and a real listener, as processes, from their own
// network.
package hardening

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"encoding/pem"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const (
	runtimeName = "runtime-1"
	domain      = "runtime-1.example.com"
	manager     = "widgets"

	// Attackers and legitimate clients have different addresses, as pods and API servers do.
	attackers = "127.0.0.66"
	friends   = "127.0.0.2"
)

// scene is an agent with its control plane. The test is its API server.
type scene struct {
	pki   *lab.PKI
	agent *lab.Agent
}

func newScene(t *testing.T, env map[string]string) *scene {
	t.Helper()
	lab.SkipShort(t)
	all := map[string]string{"CONTROL_PLANE_CONTRACT": "v3", "SETTLE": "1ms", "LOG_LEVEL": "debug", "HEARTBEAT_INTERVAL": "1h"}
	maps.Copy(all, env)
	s := &scene{pki: lab.NewPKI(t)}
	plane := lab.StartPlane(t, s.pki, lab.PlaneOptions{}, manager)
	s.agent = lab.StartAgent(t, s.pki.RuntimeVolume(runtimeName, domain), plane.Addr, lab.AgentOptions{Env: all})
	return s
}

func (s *scene) webhook() string { return lab.Address(s.agent.WebhookPort) }

func (s *scene) metrics() string { return lab.Address(s.agent.MetricsPort) }

// from connects from a loopback address of choice.
func from(address string) *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
}

// tlsFrom connects and shakes hands.
func tlsFrom(ctx context.Context, address, to string, config *tls.Config) (*tls.Conn, error) {
	conn, err := (&tls.Dialer{NetDialer: from(address), Config: config}).DialContext(ctx, "tcp", to)
	encrypted, _ := conn.(*tls.Conn) // None after an error.
	return encrypted, err
}

// clientOf returns the configuration of a client with these certificates, or without.
func clientOf(pki *lab.PKI, pairs ...tls.Certificate) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pki.CA.Pool(), ServerName: "localhost", Certificates: pairs}
}

func TestKeepsSecretsFindsThem(t *testing.T) {
	volume := lab.NewPKI(t).RuntimeVolume(runtimeName, domain)
	text := lab.Must(os.ReadFile(volume.Path("tls.key")))
	block, _ := pem.Decode(text)
	for name, log := range map[string]string{
		"PEM": string(text), "nothing": "", "Base64": strings.Split(string(text), "\n")[1],
		"hexadecimal": hex.EncodeToString(block.Bytes),
	} {
		probe := &lab.Complaints{TB: t}
		lab.KeepsSecrets(probe, log, lab.Secrets(volume)...)
		if probe.N == 0 {
			t.Errorf("a key as %s is not found", name)
		}
	}
}

// Failures are logged: broken files, untrusted certificates, an absent API server.
func TestTroubleTellsNoSecrets(t *testing.T) {
	t.Parallel() // It waits for an agent that reads its files again.
	token := "header.claims.c2lnbmF0dXJlIHRoYXQgaXMgYSBzZWNyZXQ"
	tokenFile := filepath.Join(t.TempDir(), "token")
	lab.NoError(t, os.WriteFile(tokenFile, []byte(token), 0o600))
	pki := lab.NewPKI(t)
	ca, _, _ := pki.RuntimeVolume(runtimeName, domain).Paths()
	s := newScene(t, map[string]string{
		"CANARY_LEASE": "kyma-system/canary", "CANARY_API_SERVER": "https://" + lab.Address(lab.FreePort(t)),
		"CANARY_INTERVAL":   "100ms",
		"CANARY_TOKEN_FILE": tokenFile, "CANARY_CA_CERT": ca, "HEARTBEAT_INTERVAL": "1s", "MANAGERS": manager,
	})
	logged := func(what string, times int) {
		t.Helper()
		lab.Eventually(t, lab.Patience, what+" is in the log",
			func() bool { return strings.Count(s.agent.FullLog(), what) >= times })
	}
	good := lab.Secrets(s.agent.Volume)
	write := func(files ...[]byte) {
		lab.NoError(t, s.agent.Volume.Write(map[string][]byte{"ca.crt": files[0], "tls.crt": files[1], "tls.key": files[2]}))
	}
	stranger := lab.Secrets(pki.RuntimeVolume(runtimeName, domain)) // Of a CA that the control plane does not know.
	write(good[0], good[1], good[2][:len(good[2])/2])
	logged("key material on disk is broken", 1)
	write(good[0], good[1], stranger[2]) // A key that is not of this certificate.
	logged("key material on disk is broken", 2)
	write(good[0], stranger[1], stranger[2])
	logged("key material reloaded", 1)
	logged("manager does not accept events", 1)
	logged("canary", 1)
	write(good...)
	lab.KeepsSecrets(t, s.agent.FullLog(),
		append(append([][]byte{[]byte("c2lnbmF0dXJlIHRoYXQgaXMgYSBzZWNyZXQ")}, good...), stranger...)...)
}
