package e2e

import (
	"crypto/x509"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// mistake is one change to a correct set-up, and the line that must name it.
type mistake struct {
	change func(t *testing.T, s *scene, env map[string]string)
	code   int
	line   string // a pattern
}

// TestCheck runs "agent check" as a process, against an operator with SAN pinning and the Lease of a
// real API server.
func TestCheck(t *testing.T) {
	s := newScene(t)
	sound := lab.NewCanary(t, s.runtime, "check-canary").Env
	maps.Copy(sound, lab.VolumeEnv(s.pki.RuntimeVolume(runtime, domain)))
	sound["KCP_ADDR"], sound["MANAGERS"] = s.plane.Addr, manager
	awaitOperator(t, sound)
	for name, m := range mistakes() {
		t.Run(name, func(t *testing.T) {
			env := maps.Clone(sound)
			m.change(t, s, env)
			out, code := lab.Check(t, env)
			if code != m.code {
				t.Errorf("exit code %d, want %d", code, m.code)
			}
			if line := lab.Telling(out, m.code); !regexp.MustCompile(`^` + m.line).MatchString(line) {
				t.Errorf("line %q, want a match of %s", line, m.line)
			}
			t.Logf("\n%s", out)
		})
	}
}

func mistakes() map[string]mistake {
	return map[string]mistake{
		"none":             {func(*testing.T, *scene, map[string]string) {}, 0, `ok    heartbeat .*manager kyma`},
		"missing file":     {set("TLS_CERT", "/nowhere/tls.crt"), 2, `FAIL  settings +TLS_CERT: .*no such file.*correct it`},
		"unknown setting":  {set("KCP_CONTRACT", "v9"), 2, `FAIL  settings +KCP_CONTRACT: .*want one of .v1 v2 v3.`},
		"key of another":   {otherKey, 1, `FAIL  TLS_CERT +keys: key material \S+tls.key .mismatch.: .*take certificate and key of one Secret`},
		"expired":          {leaf(expired), 1, `FAIL  TLS_CERT +.*tls.crt .expired.: .*check cert-manager`},
		"server usage":     {leaf(serverOnly), 1, `FAIL  TLS_CERT usage +.*without clientAuth; want clientAuth`},
		"no name":          {leaf(nameless), 1, `FAIL  TLS_CERT as server +no DNS name .*<service>.<namespace>.svc`},
		"managers file":    {managersFile, 1, `FAIL  MANAGERS_FILE +.*Not/A/Name.*correct the ConfigMap`},
		"closed port":      {closedPort, 1, `FAIL  connection +.*refused; want an open port; check KCP_ADDR`},
		"no TLS":           {plainPort, 1, `FAIL  TLS .*another protocol`},
		"silent port":      {silentPort, 1, `FAIL  TLS +no answer in time; want a TLS handshake within 10s`},
		"wrong CA":         {otherCA, 1, `FAIL  TLS .*unknown authority.*want a certificate that CA_CERT issued`},
		"wrong name":       {set("KCP_SERVER_NAME", "other.example.com"), 1, `FAIL  TLS .*set KCP_SERVER_NAME`},
		"untrusted client": {otherClient, 1, `FAIL  TLS .*want a control plane that accepts TLS_CERT; check the CA bundle`},
		"unknown manager":  {set("MANAGERS", "nobody"), 1, `FAIL  heartbeat +manager nobody: unknown_manager: .*correct MANAGERS`},
		"other domain":     {leaf(otherDomain), 1, `FAIL  heartbeat +manager kyma: forbidden: .*: "san_mismatch"; want .*skr-domain equal`},
		"old listener":     {oldListener, 1, `FAIL  heartbeat +manager kyma: unknown_contract: .*set CONTRACT_FALLBACK`},
		"no Lease":         {set("CANARY_LEASE", "default/none"), 1, `FAIL  canary .*403.*Role`},
		"no token":         {emptyToken, 1, `FAIL  canary .*401 .*CANARY_TOKEN_FILE`},
		"no API server":    {closedAPIServer, 1, `FAIL  canary .*refused; want an answer of the API server`},
	}
}

func set(name, value string) func(*testing.T, *scene, map[string]string) {
	return func(_ *testing.T, _ *scene, env map[string]string) { env[name] = value }
}

func leaf(change func(*testpki.Options)) func(*testing.T, *scene, map[string]string) {
	return func(t *testing.T, s *scene, env map[string]string) {
		t.Helper()
		maps.Copy(env, lab.VolumeEnv(s.pki.Volume(newLeaf(t, s.pki.CA, change))))
	}
}

func newLeaf(t *testing.T, ca *testpki.CA, change func(*testpki.Options)) *testpki.Leaf {
	t.Helper()
	opts := testpki.Options{DNSNames: []string{domain}, Usages: lab.BothUsages()}
	change(&opts)
	l := lab.Must(ca.Client(runtime, opts))
	return l
}

func expired(o *testpki.Options)     { o.NotBefore, o.NotAfter = daysAgo(9), daysAgo(1) }
func daysAgo(days int) time.Time     { return time.Now().AddDate(0, 0, -days) }
func otherDomain(o *testpki.Options) { o.DNSNames = []string{"runtime-9.example.com"} }

func serverOnly(o *testpki.Options) { o.Usages = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }
func nameless(o *testpki.Options)   { o.DNSNames = nil }

func otherKey(t *testing.T, s *scene, env map[string]string) {
	t.Helper()
	_, _, key := s.pki.RuntimeVolume(runtime, domain).Paths()
	env["TLS_KEY"] = key
}

func otherCA(t *testing.T, _ *scene, env map[string]string) {
	t.Helper()
	env["CA_CERT"], _, _ = lab.NewPKI(t).RuntimeVolume(runtime, domain).Paths()
}

func otherClient(t *testing.T, _ *scene, env map[string]string) {
	t.Helper()
	ca := env["CA_CERT"]
	maps.Copy(env, lab.VolumeEnv(lab.NewPKI(t).RuntimeVolume(runtime, domain)))
	env["CA_CERT"] = ca
}

func managersFile(t *testing.T, _ *scene, env map[string]string) {
	t.Helper()
	env["MANAGERS_FILE"] = written(t, "Not/A/Name\n")
}

func written(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	lab.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func emptyToken(t *testing.T, _ *scene, env map[string]string) {
	t.Helper()
	env["CANARY_TOKEN_FILE"] = written(t, "none\n")
}

func closedPort(t *testing.T, _ *scene, env map[string]string) {
	t.Helper()
	env["KCP_ADDR"] = lab.Address(lab.FreePort(t))
}

func closedAPIServer(t *testing.T, _ *scene, env map[string]string) {
	t.Helper()
	env["CANARY_API_SERVER"] = "https://" + lab.Address(lab.FreePort(t))
}

func plainPort(t *testing.T, _ *scene, env map[string]string) {
	t.Helper()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	env["KCP_ADDR"] = server.Listener.Addr().String()
}

// silentPort accepts connections, and sends nothing.
func silentPort(t *testing.T, _ *scene, env map[string]string) {
	t.Helper()
	silent := lab.Must(net.Listen("tcp", "127.0.0.1:0"))
	t.Cleanup(func() { _ = silent.Close() })
	env["KCP_ADDR"] = silent.Addr().String()
}

// oldListener knows contract v2 only, as the deployed ones do.
func oldListener(t *testing.T, s *scene, env map[string]string) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS, server.EnableHTTP2 = keys.ServerTLSConfig(s.pki.ServerMaterial()), true
	server.StartTLS()
	t.Cleanup(server.Close)
	env["KCP_ADDR"] = server.Listener.Addr().String()
}

// awaitOperator waits until the operator takes the heartbeat of a check, which is a while after it
// started.
func awaitOperator(t *testing.T, sound map[string]string) {
	t.Helper()
	lab.Eventually(t, patience, "a check of a sound set-up is good", func() bool {
		_, code := lab.Check(t, sound)
		return code == 0
	})
}

// A check before and beside an agent, under the same name, must not confuse the fleet.
func TestCheckBesideAnAgent(t *testing.T) {
	s := newScene(t)
	canary, volume := lab.NewCanary(t, s.runtime, "beside-canary"), s.pki.RuntimeVolume(runtime, domain)
	env := maps.Clone(canary.Env)
	maps.Copy(env, lab.VolumeEnv(volume))
	maps.Copy(env, map[string]string{
		"MANAGERS": manager, "INSTANCE": "agent-0", "HEARTBEAT_INTERVAL": "2s", "CANARY_INTERVAL": "1s",
		"RESEND_RESYNC": "0s", "KCP_ADDR": s.plane.Addr,
	})
	s.checkBefore(canary, env)
	agent := lab.StartAgent(t, volume, env["KCP_ADDR"], lab.AgentOptions{Env: env})
	lab.Register(t, s.runtime, "check", agent.WebhookPort, s.pki.CA.PEM,
		admission.ConfigurationOptions{Canary: canary.Lease}, watchedConfigMaps())
	lab.Eventually(t, patience, "the runtime is fresh", func() bool {
		return s.fleet.Get(runtime, manager).State == fleet.Fresh
	})
	awaitHeartbeats := func(more uint64) {
		number := func() uint64 { return s.fleet.Get(runtime, manager).Replicas[0].Heartbeat.Number }
		before := number()
		lab.Eventually(t, patience, "more heartbeats", func() bool { return number() > before+more })
	}
	// The first resyncs, and stalls of a busy machine, may come between. A check that costs one does so each time.
	lab.Eventually(t, patience, "checks leave the agent alone in the fleet and fresh, without a resync", func() bool {
		before, deliveries := s.fleet.Get(runtime, manager), s.deliveries.Load()
		for range 3 {
			if out, code := lab.Check(t, env); code != 0 || !strings.Contains(out, "ok    webhook") {
				t.Logf("exit code %d, want 0 and that the API server calls the agent:\n%s", code, out)
				return false
			}
		}
		awaitHeartbeats(2)
		after := s.fleet.Get(runtime, manager)
		return len(after.Replicas) == 1 && after.Replicas[0].Epoch == before.Replicas[0].Epoch &&
			after.State == fleet.Fresh && after.Since.Equal(before.Since) && s.deliveries.Load() == deliveries
	})
	env["METRICS_PORT"] = strconv.Itoa(agent.MetricsPort)
	s.checkFindsFault(env, "the caBundle of another", func(stored *admissionregistrationv1.ValidatingWebhookConfiguration) error {
		for n := range stored.Webhooks {
			stored.Webhooks[n].ClientConfig.CABundle = lab.NewPKI(t).CA.PEM
		}
		return s.runtime.Client.Update(t.Context(), stored)
	}, `FAIL  webhook +the API server rejects the certificate of the agent; want a caBundle`)
	s.checkFindsFault(env, "no configuration", func(stored *admissionregistrationv1.ValidatingWebhookConfiguration) error {
		return s.runtime.Client.Delete(t.Context(), stored)
	}, `FAIL  webhook +the API server calls no agent, and one runs here; want a call; apply the webhook configuration`)
}

// checkFindsFault breaks the webhook configuration. A check beside an agent must fail with the cause.
func (s *scene) checkFindsFault(
	env map[string]string, name string,
	inject func(stored *admissionregistrationv1.ValidatingWebhookConfiguration) error, line string,
) {
	s.t.Helper()
	var stored admissionregistrationv1.ValidatingWebhookConfiguration
	err := s.runtime.Client.Get(s.t.Context(), client.ObjectKey{Name: "check"}, &stored)
	lab.NoError(s.t, errors.Join(err, inject(&stored)))
	lab.Eventually(s.t, patience, name+": the check fails with the cause", func() bool {
		out, code := lab.Check(s.t, env)
		return code == 1 && regexp.MustCompile(`^`+line).MatchString(lab.Telling(out, code))
	})
}

// checkBefore checks without an agent, as an init container does.
func (s *scene) checkBefore(canary *lab.Canary, env map[string]string) {
	s.t.Helper()
	lease := func() string {
		found := &coordinationv1.Lease{}
		lab.NoError(s.t, s.runtime.Client.Get(s.t.Context(), canary.Lease, found))
		return found.ResourceVersion
	}
	before := lease()
	awaitOperator(s.t, env)
	if out, code := lab.Check(s.t, env); code != 0 || !strings.Contains(out, "warn  webhook") {
		s.t.Fatalf("exit code %d, want 0 and a warning that no agent is called:\n%s", code, out)
	}
	if state := s.fleet.Get(runtime, manager).State; state != fleet.Unknown {
		s.t.Errorf("after a check without agent the runtime is %s, want unknown", state)
	}
	if after := lease(); after != before {
		s.t.Errorf("resource version of the Lease %s, want %s: a check changes nothing", after, before)
	}
}
