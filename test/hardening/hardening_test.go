// Package hardening floods the ports of a real agent from its own network, and searches its logs for
// secrets.
package hardening

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
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

	// many are the connections of an attack. Each sends the beginning of a request, or of a handshake.
	many  = 500
	hello = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"

	// patience is the limit for steps that take milliseconds on a machine without an attack.
	patience = 2 * time.Minute
)

// startAgent starts an agent with its control plane. The test is its API server.
func startAgent(t *testing.T, pki *lab.PKI, env map[string]string) *lab.Agent {
	t.Helper()
	lab.SkipShort(t)
	all := map[string]string{"KCP_CONTRACT": "v3", "SETTLE": "1ms", "LOG_LEVEL": "debug", "HEARTBEAT_INTERVAL": "1h"}
	maps.Copy(all, env)
	plane := lab.StartPlane(t, pki, lab.PlaneOptions{}, manager)
	return lab.StartAgent(t, pki.RuntimeVolume(runtimeName, domain), plane.Addr, lab.AgentOptions{Env: all})
}

// dialFrom connects from a loopback address of choice.
func dialFrom(ctx context.Context, from, to string) (net.Conn, error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	return dialer.DialContext(ctx, "tcp", to)
}

// TestPortsUnderFlood opens more connections to each port of an agent than it takes. A client from
// elsewhere is served.
func TestPortsUnderFlood(t *testing.T) {
	pki := lab.NewPKI(t)
	agent := startAgent(t, pki, nil)
	caller := &http.Client{Timeout: patience, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pki.CA.Pool(), ServerName: "localhost"},
		DialContext:     func(ctx context.Context, _, to string) (net.Conn, error) { return dialFrom(ctx, friends, to) },
	}}
	defer caller.CloseIdleConnections()
	webhook, metrics := lab.Address(agent.WebhookPort), lab.Address(agent.MetricsPort)
	const others = 40 // The other port, files, and connections that are about to close.
	for _, port := range []struct {
		name, address, begin string
		most                 int // connections
	}{
		{"metrics", metrics, "GET /metrics HTTP/1.1\r\nX: ", 64},
		{"webhook", webhook, hello, 192},
	} {
		t.Run(port.name, func(t *testing.T) {
			flood(t, port.address, port.begin)
			if err := lab.Ask(t.Context(), caller, "https://"+webhook+"/validate/"+manager, lab.Review(port.name, 0)); err != nil {
				t.Error(err)
			}
			// On a busy machine, some time out before.
			least, label := float64(many-port.most)/2, fmt.Sprintf("server=%q", port.name)
			lab.Eventually(t, patience, "connections are dropped, and counted", func() bool {
				return agent.Metric("runtime_watcher_agent_connections_dropped_total", label) >= least
			})
			if files := lab.Must(os.ReadDir(fmt.Sprintf("/proc/%d/fd", agent.Pid()))); len(files) > port.most+64+others {
				t.Errorf("%d open files", len(files))
			}
		})
	}
}

// flood opens connections until the test ends.
func flood(t *testing.T, address, begin string) {
	t.Helper()
	for range many {
		conn := lab.Must(dialFrom(t.Context(), attackers, address))
		t.Cleanup(func() { conn.Close() })
		_, _ = io.WriteString(conn, begin) // Some are closed by now.
	}
}

// TestListenerUnderFlood does the same to a listener that ends TLS. A runtime delivers meanwhile.
func TestListenerUnderFlood(t *testing.T) {
	const most = 64
	var dropped atomic.Int64
	pki := lab.NewPKI(t)
	material, bound := pki.ServerMaterial(), lab.Must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	taken := core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })
	server := lab.Must(listener.New(listener.FromTLSWithRoots(keys.Roots(material), listener.PeerOptions{}),
		listener.InsecureAllowAll(), map[core.Manager]core.Handler{manager: taken}, listener.Options{
			Listener: bound, TLS: keys.ServerTLSConfig(material), MaxConnections: most,
			Hooks: listener.Hooks{ConnectionDropped: func(string) { dropped.Add(1) }},
		}))
	lab.Run(t, "listener", server.Start)
	flood(t, bound.Addr().String(), hello)
	leaf := lab.Must(pki.CA.Client(runtimeName, testpki.Options{}))
	forwarder := lab.Must(httpmtls.NewForwarder(lab.Must(keys.NewMaterial(pki.CA.PEM, leaf.CertPEM, leaf.KeyPEM)),
		bound.Addr().String(), contract.V3, httpmtls.Options{Timeout: patience, ServerName: "localhost"}))
	t.Cleanup(func() { _ = forwarder.Close() }) // It is idle.
	if err := forwarder.Forward(t.Context(), manager, core.NewBatch(core.WatchEvent{Resync: true})); err != nil {
		t.Error(err)
	}
	lab.Eventually(t, patience, "connections are dropped, and counted", func() bool { return dropped.Load() >= (many-most)/2 })
}

func TestKeepsSecretsFindsThem(t *testing.T) {
	volume := lab.NewPKI(t).RuntimeVolume(runtimeName, domain)
	text := lab.Must(os.ReadFile(volume.Path("tls.key")))
	block, _ := pem.Decode(text)
	for name, log := range map[string]string{
		"PEM": string(text), "nothing": "", "Base64": strings.Split(string(text), "\n")[1],
		"hexadecimal": hex.EncodeToString(block.Bytes),
	} {
		// A test that is not ours takes the complaint.
		probe := &complaints{TB: t}
		lab.KeepsSecrets(probe, log, lab.Secrets(volume)...)
		if probe.n == 0 {
			t.Errorf("a key as %s is not found", name)
		}
	}
}

// complaints counts the problems that a check has found.
type complaints struct {
	testing.TB

	n int
}

func (c *complaints) Helper() {}

func (c *complaints) Error(...any) { c.n++ }

func (c *complaints) Errorf(string, ...any) { c.n++ }

// Failures are logged: broken files, untrusted certificates, an absent API server.
func TestTroubleTellsNoSecrets(t *testing.T) {
	t.Parallel() // It waits for an agent that reads its files again.
	token := "header.claims.c2lnbmF0dXJlIHRoYXQgaXMgYSBzZWNyZXQ"
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	pki := lab.NewPKI(t)
	ca, _, _ := pki.RuntimeVolume(runtimeName, domain).Paths()
	agent := startAgent(t, lab.NewPKI(t), map[string]string{
		"CANARY_LEASE": "kyma-system/canary", "CANARY_API_SERVER": "https://" + lab.Address(lab.FreePort(t)),
		"CANARY_INTERVAL":   "100ms",
		"CANARY_TOKEN_FILE": tokenFile, "CANARY_CA_CERT": ca, "HEARTBEAT_INTERVAL": "1s", "MANAGERS": manager,
	})
	logged := func(what string, times int) {
		t.Helper()
		lab.Eventually(t, patience, what+" is in the log",
			func() bool { return strings.Count(agent.FullLog(), what) >= times })
	}
	good := lab.Secrets(agent.Volume)
	write := func(files ...[]byte) {
		if err := agent.Volume.Write(map[string][]byte{
			"ca.crt": files[0], "tls.crt": files[1],
			"tls.key": files[2],
		}); err != nil {
			t.Fatal(err)
		}
	}
	stranger := lab.Secrets(pki.RuntimeVolume(runtimeName, domain)) // Of a CA that the control plane does not know.
	write(good[0], good[1], good[2][:len(good[2])/2])
	logged("key material on disk is broken", 1)
	write(good[0], good[1], stranger[2]) // A key that is not of this certificate.
	logged("key material on disk is broken", 2)
	write(good[0], stranger[1], stranger[2])
	logged("key material reloaded", 1)
	logged("manager does not take events", 1)
	logged("canary", 1)
	write(good...)
	lab.KeepsSecrets(t, agent.FullLog(),
		append(append([][]byte{[]byte("c2lnbmF0dXJlIHRoYXQgaXMgYSBzZWNyZXQ")}, good...), stranger...)...)
}
