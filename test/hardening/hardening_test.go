// Package hardening attacks the real agent and a real listener, as processes, from their own
// network.
package hardening

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
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
	patience = 30 * time.Second
)

// recorder is a control plane that accepts every request and records it.
type recorder struct {
	*httptest.Server

	mu      sync.Mutex
	targets []string // as they came, nothing decoded
	names   []string // of the changed objects
}

func newRecorder(t *testing.T, pki *lab.PKI) *recorder {
	t.Helper()
	r := &recorder{}
	r.Server = httptest.NewUnstartedServer(r)
	r.TLS = keys.ServerTLSConfig(pki.ServerMaterial())
	r.EnableHTTP2 = true
	r.StartTLS()
	t.Cleanup(r.Close)
	return r
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, _ := io.ReadAll(request.Body) // A truncated body fails to decode.
	batch, _ := contract.V3.Decode(body)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.targets = append(r.targets, request.Method+" "+request.RequestURI)
	for _, event := range batch.Events {
		r.names = append(r.names, event.Watched.Name)
	}
	w.WriteHeader(http.StatusAccepted)
}

func (r *recorder) seen() (targets, names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.targets...), append([]string(nil), r.names...)
}

func (r *recorder) address() string { return r.Listener.Addr().String() }

// scene is an agent with its control plane. The test is its API server.
type scene struct {
	t        *testing.T
	pki      *lab.PKI
	recorder *recorder
	agent    *lab.Agent
}

func newScene(t *testing.T, env map[string]string) *scene {
	t.Helper()
	needsProcesses(t)
	all := map[string]string{"KCP_CONTRACT": "v3", "SETTLE": "1ms", "LOG_LEVEL": "debug", "HEARTBEAT_INTERVAL": "1h"}
	maps.Copy(all, env)
	s := &scene{t: t, pki: lab.NewPKI(t)}
	s.recorder = newRecorder(t, s.pki)
	s.agent = lab.StartAgent(t, s.pki.RuntimeVolume(runtimeName, domain), s.recorder.address(),
		lab.AgentOptions{Env: all})
	return s
}

func needsProcesses(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs the agent, which -short leaves out")
	}
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
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost,
		"https://"+s.webhook()+"/validate/"+manager,
		strings.NewReader(reviewOf(name, 0)))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	var review struct {
		Response struct {
			Allowed bool `json:"allowed"`
		} `json:"response"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&review); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK || !review.Response.Allowed {
		return fmt.Errorf("answer %s, allowed: %v", answer.Status, review.Response.Allowed)
	}
	return nil
}

// reviewOf returns an AdmissionReview with that many bytes of padding.
func reviewOf(name string, padding int) string {
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"uid-1",`+
		`"kind":{"group":"","version":"v1","kind":"ConfigMap"},"resource":{"group":"","version":"v1",`+
		`"resource":"configmaps"},`+
		`"name":%[1]q,"namespace":"default","operation":"CREATE","userInfo":{},"dryRun":false,"oldObject":null,`+
		`"object":{`+
		`"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%[1]q,"namespace":"default"},"data":{"a":%[2]q}}}}`,
		name, strings.Repeat("a", padding))
}

// awaitEvent waits until the event of an object has reached the control plane.
func (s *scene) awaitEvent(name string) {
	s.t.Helper()
	lab.Eventually(s.t, patience, "the event of "+name+" reached the control plane", func() bool {
		_, names := s.recorder.seen()
		return slices.Contains(names, name)
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

// leafOf returns a key pair of a leaf.
func leafOf(t *testing.T, leaf *testpki.Leaf, err error) tls.Certificate {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	key, err := leaf.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(leaf.CertPEM(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}
