package hardening

import (
	"crypto/tls"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/controlplane"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

const (
	// fipsModule is the validated snapshot of Go's cryptography that is linked (go.dev/doc/security/fips140).
	fipsModule = "GOFIPS140=v1.0.0"
	// fipsOnly lets every other algorithm fail, where fips140=on would only not negotiate it.
	fipsOnly = "fips140=only"
)

// buildFIPS compiles a package of a module with the FIPS 140-3 module.
func buildFIPS(t *testing.T, module, pkg string) string {
	t.Helper()

	_ = os.Getenv(rig.SourcesEnv)

	path := filepath.Join(test.Root(), "bin", "test", "fips", filepath.Base(filepath.Join(module, pkg)))
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./"+pkg)
	cmd.Dir = filepath.Join(test.Root(), module)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", fipsModule)

	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}

	return path
}

// TestFIPS runs the main job with both ends in FIPS 140-3 mode: a write in a real API server, the agent, the listener.
func TestFIPS(t *testing.T) {
	needsProcesses(t)
	t.Parallel()

	pki := rig.NewPKI(t)
	operator := startOperator(t, pki, buildFIPS(t, "examples", "minimal"), "GODEBUG="+fipsOnly)
	agent := rig.StartAgent(t, pki.RuntimeVolume(runtimeName, domain), operator.addr, rig.AgentOptions{
		Binary: buildFIPS(t, "cmd/agent", ""),
		Env:    map[string]string{"GODEBUG": fipsOnly, "KCP_CONTRACT": "v3", "LOG_LEVEL": "debug"},
	})
	runtime := controlplane.StartT(t, controlplane.Options{})

	rig.Watch(t, runtime, agent, pki.CA.PEM(), configMaps())

	if err := runtime.Client.Create(t.Context(), watchedConfigMap("approved")); err != nil {
		t.Fatal(err)
	}

	rig.Eventually(t, patience, "the operator was told", func() bool { return operator.printed(runtimeName, "approved") })

	if n := agent.Metric("runtime_watcher_agent_build_info", `fips140="v1.0.0`); n != 1 {
		t.Error("the agent's build info does not name the FIPS module")
	}

	leaf, err := pki.CA.Client("runtime-2", testpki.Options{})
	pair := leafOf(t, leaf, err)

	for name, door := range map[string]string{"webhook": rig.Address(agent.WebhookPort), "listener": operator.addr} {
		t.Run(name, func(t *testing.T) {
			offer := &tls.Config{
				MinVersion: tls.VersionTLS12, RootCAs: pki.CA.Pool(), ServerName: "localhost", Certificates: []tls.Certificate{pair},
			}
			checkFIPSDoor(t, door, offer)
		})
	}
}

// checkFIPSDoor offers one thing at a time.
func checkFIPSDoor(t *testing.T, door string, offer *tls.Config) {
	t.Helper()

	var taken []string

	for _, curve := range []tls.CurveID{
		tls.X25519, tls.CurveP256, tls.CurveP384, tls.CurveP521, tls.X25519MLKEM768, tls.SecP256r1MLKEM768, tls.SecP384r1MLKEM1024,
	} {
		config := offer.Clone()
		config.CurvePreferences = []tls.CurveID{curve}

		conn, err := tlsFrom(t.Context(), friends, door, config)
		if err != nil {
			continue
		}

		state := conn.ConnectionState()
		taken = append(taken, curve.String()+" with "+tls.CipherSuiteName(state.CipherSuite))
		conn.Close()

		if state.Version != tls.VersionTLS13 || !strings.HasPrefix(tls.CipherSuiteName(state.CipherSuite), "TLS_AES_") {
			t.Errorf("%s: version %x with %s, want TLS 1.3 with AES", curve, state.Version, tls.CipherSuiteName(state.CipherSuite))
		}

		if curve == tls.X25519 {
			t.Error("X25519 alone is not approved, and was taken")
		}
	}

	t.Logf("taken: %s", strings.Join(taken, ", "))

	if len(taken) == 0 {
		t.Error("no curve was taken")
	}

	old := offer.Clone()
	old.MaxVersion = tls.VersionTLS12

	if conn, err := tlsFrom(t.Context(), friends, door, old); err == nil {
		conn.Close()
		t.Error("TLS 1.2 was taken")
	}
}
