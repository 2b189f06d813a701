package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// count returns the sum of a metric over its series in a scrape.
func count(tb testing.TB, scrape, metric string) (sum float64) {
	tb.Helper()

	for _, match := range regexp.MustCompile(`(?m)^`+metric+`(?:\{.*\})? (\S+)$`).FindAllStringSubmatch(scrape, -1) {
		sum += must(strconv.ParseFloat(match[1], 64))(tb)
	}

	return sum
}

func TestAWriteInTheRuntimeArrivesInTheControlPlane(t *testing.T) {
	t.Parallel()

	owner := types.NamespacedName{Namespace: "kcp-system", Name: "kyma-1"}
	for version, test := range map[contract.Version]struct {
		owner    types.NamespacedName
		protocol string // by default
	}{
		contract.V1: {owner, "HTTP/2.0"}, contract.V2: {types.NamespacedName{}, "HTTP/2.0"}, contract.V3: {owner, "HTTP/1.1"},
	} {
		for setting, protocol := range map[string]string{"": test.protocol, "http1": "HTTP/1.1", "http2": "HTTP/2.0"} {
			t.Run(string(version)+" "+setting, func(t *testing.T) {
				t.Parallel()

				p, kcp := newPlane(t)
				s := start(t, p, env(p, kcp, "KCP_CONTRACT="+string(version)), "--kcp-protocol="+setting)
				if got := s.review(t, "ignored", true); !strings.HasPrefix(got, "dry_run") {
					t.Errorf("decision %q on a dry run, want dry_run", got)
				}
				if got := s.review(t, "demo", false); !strings.HasPrefix(got, "accepted") {
					t.Errorf("decision %q, want accepted", got)
				}

				want := received{version.Path("widgets"), "runtime-1", protocol, []core.Numbered{{WatchEvent: core.WatchEvent{
					Owner: test.owner, Watched: types.NamespacedName{Namespace: "default", Name: "demo"},
					WatchedGVK: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
				}}}}
				if diff := cmp.Diff(want, kcp.next(t), cmp.AllowUnexported(received{}),
					cmpopts.IgnoreFields(core.WatchEvent{}, "Operation", "Field", "Time"),
					cmpopts.IgnoreFields(core.Numbered{}, "ID", "Sequence")); diff != "" {
					t.Errorf("received (-want +got):\n%s", diff)
				}

				// With the resync, which comes first.
				got := s.stop(t)
				if diff := cmp.Diff(fates{accepted: 2 + s.stalls(), done: 2 + s.stalls()}, got, cmp.AllowUnexported(fates{})); diff != "" {
					t.Errorf("fates of events (-want +got):\n%s", diff)
				}
				if n := len(kcp.received); n > 0 {
					t.Errorf("%d more events arrived, want none of the dry run", n)
				}
			})
		}
	}
}

func TestMetricsAddUp(t *testing.T) {
	t.Parallel()

	_, s := startWith(t, http.StatusOK, "MANAGERS=widgets,gadgets")
	for i := range 20 {
		s.review(t, "demo-"+strconv.Itoa(i%5), false)
	}

	s.review(t, "ignored", true)
	if status, _ := s.get(t, "https://"+s.webhook+"/validate/"); status != http.StatusNotFound {
		t.Errorf("status %d of an unknown path, want 404", status)
	}

	const prefix = "runtime_watcher_agent_"
	s.until(t, func(scrape string) string {
		accepted := count(t, scrape, prefix+"events_accepted_total")
		delivered := count(t, scrape, prefix+"events_delivered_total")
		coalesced := count(t, scrape, prefix+"events_coalesced_total")
		pending := count(t, scrape, prefix+"events_pending")
		if accepted != delivered+coalesced+pending {
			t.Fatalf("accepted %v = delivered %v + coalesced %v + pending %v", accepted, delivered, coalesced, pending)
		}

		// With a resync for each of the two managers. Another goroutine writes the line about a stall.
		if stalls := s.stalls(); accepted < 22 || accepted > 22+2*stalls {
			return fmt.Sprintf("%v events are accepted, want 22, and two for each of %v stalls", accepted, stalls)
		}

		// A refusal is counted after its answer.
		if pending > 0 || count(t, scrape, prefix+"admission_refusals_total") != 1 {
			return "events are pending, or no refusal is counted"
		}

		checkScrape(t, scrape)
		return ""
	})

	s.stop(t)
}

func checkScrape(t *testing.T, scrape string) {
	t.Helper()

	for metric, want := range map[string]float64{
		`runtime_watcher_agent_admission_reviews_total\{decision="dry_run",manager="widgets"\}`: 1,
		"runtime_watcher_agent_build_info": 1,
	} {
		if got := count(t, scrape, metric); got != want {
			t.Errorf("%s is %v, want %v", metric, got, want)
		}
	}

	for _, metric := range []string{
		"go_goroutines", "process_open_fds", "runtime_watcher_agent_forward_duration_seconds_count",
		`runtime_watcher_agent_certificate_expiry_timestamp_seconds\{use="client"\}`,
		`runtime_watcher_agent_certificate_expiry_timestamp_seconds\{use="server"\}`,
		`runtime_watcher_agent_certificate_expiry_timestamp_seconds\{use="ca"\}`,
		`runtime_watcher_agent_certificate_lifetime_seconds\{use="server"\}`,
	} {
		if count(t, scrape, metric) == 0 {
			t.Errorf("%s is missing", metric)
		}
	}

	if strings.Contains(scrape, "\nwatcher_") {
		t.Error("an alias is there without METRICS_ALIASES")
	}
}

func TestPortsServeWhatIsTheirsOnly(t *testing.T) {
	t.Parallel()

	_, s := startWith(t, http.StatusOK)
	for url, want := range map[string]int{
		"http://" + s.metrics + "/healthz":           http.StatusOK,
		"http://" + s.metrics + "/readyz":            http.StatusOK,
		"http://" + s.metrics + "/metrics":           http.StatusOK,
		"http://" + s.metrics + "/":                  http.StatusNotFound,
		"http://" + s.metrics + "/validate/widgets":  http.StatusNotFound,
		"http://" + s.metrics + "/debug/pprof/":      http.StatusNotFound,
		"https://" + s.webhook + "/validate/widgets": http.StatusMethodNotAllowed,
		"https://" + s.webhook + "/metrics":          http.StatusNotFound,
		"https://" + s.webhook + "/healthz":          http.StatusNotFound,
	} {
		if got, _ := s.get(t, url); got != want {
			t.Errorf("%s: status %d, want %d", url, got, want)
		}
	}

	status, _ := do(t, s.client, http.MethodPost, "http://"+s.metrics+"/readyz", "{}")
	if status != http.StatusMethodNotAllowed {
		t.Errorf("POST /readyz: status %d, want 405", status)
	}

	s.stop(t)
}

func TestWebhookCanDemandACertificateAndHaveItsOwn(t *testing.T) {
	t.Parallel()

	p := newPKI(t)
	cluster := newPKI(t)
	_, cert, key := cluster.volume.Paths()
	callers := must(testpki.NewCA("api-server-ca", testpki.Options{}))(t)
	callerFile := writeFile(t, t.TempDir()+"/ca.crt", string(callers.PEM))
	kcp := newControlPlane(t, p, http.StatusOK)
	s := start(t, p, env(p, kcp, "WEBHOOK_TLS_CERT="+cert, "WEBHOOK_TLS_KEY="+key, "WEBHOOK_CLIENT_CA="+callerFile))

	// Its own certificate is of another CA.
	s.client = cluster.apiServer(t, must(callers.Client("api-server", testpki.Options{}))(t).TLS)
	s.review(t, "demo", false)
	if got := kcp.next(t).runner; got != "runtime-1" {
		t.Errorf("event of %q, want runtime-1", got)
	}

	other := must(testpki.NewCA("other", testpki.Options{}))(t)
	s.refuses(t, cluster.apiServer(t))
	s.refuses(t, cluster.apiServer(t, must(other.Client("api-server", testpki.Options{}))(t).TLS))
	type set struct {
		Use string `json:"use"`
	}

	var h struct {
		Ready       bool  `json:"ready"`
		Serving     bool  `json:"serving"`
		KeyMaterial []set `json:"keyMaterial"`
	}

	_, body := s.get(t, "http://"+s.metrics+"/readyz")
	noError(t, json.Unmarshal([]byte(body), &h))
	want := []set{{"client"}, {"server"}, {"webhook_ca"}}
	if diff := cmp.Diff(want, h.KeyMaterial); diff != "" || !h.Ready || !h.Serving {
		t.Errorf("readyz is %s (-want +got):\n%s", body, diff)
	}

	s.stop(t)
}

func TestBrokenKeyMaterialIsToldButDoesNotStopTheAgent(t *testing.T) {
	t.Parallel()

	kcp, s := startWith(t, http.StatusOK)
	p := s.pki
	half := map[string][]byte{"ca.crt": p.ca.PEM, "tls.crt": []byte("half"), "tls.key": nil}
	noError(t, p.volume.Write(half))
	s.log.wait(t, "key material on disk is broken: the last good key material stays in use", 1)
	status, body := s.get(t, "http://"+s.metrics+"/readyz")
	if status != http.StatusOK || !strings.Contains(body, `"problem":"keys: key material `) {
		t.Errorf("readyz is %d %s, want 200 and the problem", status, body)
	}

	s.review(t, "demo", false)
	kcp.next(t)
	p.write(t, p.leaf(t, "runtime-2"))
	s.log.wait(t, "key material reloaded", 1)
	s.client.CloseIdleConnections()
	s.review(t, "demo", false)

	if got := kcp.next(t).runner; got != "runtime-2" {
		t.Errorf("event of %q, want runtime-2", got)
	}
	if _, body = s.get(t, "http://"+s.metrics+"/readyz"); strings.Contains(body, `"problem"`) {
		t.Errorf("readyz is %s, want no problem any more", body)
	}

	s.until(t, func(scrape string) string { // A reload is counted after its line in the log.
		for _, use := range []string{"client", "server"} {
			if n := count(t, scrape, `runtime_watcher_agent_certificate_reloads_total\{use="`+use+`"\}`); n != 1 {
				return fmt.Sprintf("%v reloads of the %s certificate, want 1", n, use)
			}
		}
		return ""
	})

	s.stop(t)
}

// A refused certificate delays the next attempt as long as the control plane asks for. A new
// certificate is tried immediately.
func TestARenewedCertificateIsTriedAtOnce(t *testing.T) {
	t.Parallel()

	p, kcp := newPlane(t)
	later := time.Now().Add(100 * 24 * time.Hour) // When the certificate has expired.
	kcp.clock.Store(&later)
	s := start(t, p, env(p, kcp))
	s.review(t, "demo", false)
	line := s.log.wait(t, "manager does not accept events: the agent keeps them and retries", 1)[0]
	if wait := must(time.ParseDuration(fmt.Sprint(line["wait"])))(t); wait <= patience {
		t.Fatalf("the event waits for %v, want longer than %v", wait, patience)
	}

	leaf := must(p.ca.Server("runtime-2", testpki.Options{
		NotAfter: later.Add(time.Hour), Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}))(t)

	p.write(t, leaf)
	s.log.wait(t, "key material reloaded", 1)
	if got := kcp.next(t); got.runner != "runtime-2" {
		t.Errorf("event of %q, want runtime-2", got.runner)
	}

	s.stop(t)
}

func TestWhatIsPendingIsDeliveredBeforeTheEnd(t *testing.T) {
	t.Parallel()

	kcp, s := startWith(t, http.StatusOK, "SETTLE=300ms")
	s.review(t, "demo", false)
	if events := s.stop(t); events.done != 2+s.stalls() {
		t.Errorf("fates %+v, want the event and a resync delivered", events)
	}
	if len(kcp.received) != 1 {
		t.Error("the event did not arrive")
	}
}

func TestTheEndDoesNotWaitForTheControlPlane(t *testing.T) {
	t.Parallel()

	_, s := startWith(t, http.StatusServiceUnavailable, "SHUTDOWN_TIMEOUT=400ms")
	s.review(t, "demo", false)
	if events := s.stop(t); events.dropped < 2 || events.dropped > 2+s.stalls() || events.pending != 0 {
		t.Errorf("fates %+v, want the event and a resync dropped, and none pending", events)
	}
}

// The log has the settings, warnings about flags of a former agent, and one debug line for each event.
func TestLog(t *testing.T) {
	t.Parallel()

	p, kcp := newPlane(t)
	s := start(t, p, env(p, kcp, "INSTANCE=pod-1", "LOG_LEVEL=debug", "TLS_CALLBACK=true"), "--development", "--zap-encoder", "json")
	s.review(t, "demo", false)
	kcp.next(t)
	s.stop(t)

	for _, line := range s.log.wait(t, "suspicious setting", 2) {
		if warning, _ := line["warning"].(string); line["level"] != "WARN" || !strings.Contains(warning, "former agent") {
			t.Errorf("line %v, want a warning about a flag of a former agent", line)
		}
	}

	settings, _ := s.log.wait(t, "agent starts", 1)[0]["settings"].(map[string]any)
	for name, want := range map[string]any{
		"control_plane_address": kcp.address(), "settle": "1ms", "forward_timeout": "10s", "instance": "pod-1", "managers": nil,
	} {
		if settings[name] != want {
			t.Errorf("%s is logged as %v, want %v", name, settings[name], want)
		}
	}

	var events []map[string]any
	for _, line := range s.log.snapshot() {
		if message, _ := line["msg"].(string); strings.HasPrefix(message, "NO JSON") {
			t.Error(message)
		}
		if line["level"] == "DEBUG" {
			events = append(events, line)
		}
	}

	if len(events) != 1 {
		t.Errorf("%d debug lines, want 1: %v", len(events), events)
	}
}

// Package agent has a test for each other reason, such as a port in use.
func TestAFailureEndsWithItsReason(t *testing.T) {
	t.Parallel()

	p := newPKI(t)
	book := newLogBook()
	err := run(t.Context(), nil, lookup(env(p, newControlPlane(t, p, http.StatusOK),
		"TLS_CERT=table.go", "WEBHOOK_TLS_CERT=nats.go", "WEBHOOK_TLS_KEY=nats.go", "WEBHOOK_CLIENT_CA=main.go")), nil, book)
	if exitCode(err) != 1 {
		t.Errorf("exit code %d of %v, want 1", exitCode(err), err)
	}

	message := fmt.Sprint(book.wait(t, "agent failed", 1)[0]["error"])
	for _, want := range []string{"table.go", "nats.go", "main.go"} {
		if !strings.Contains(message, want) {
			t.Errorf("error %q, want %q in it", message, want)
		}
	}
}

// A connection that the limit closes may have carried a review, so a resync stands in for it.
func TestClosedConnectionLeadsToAResync(t *testing.T) {
	t.Parallel()

	kcp, agent := startWith(t, http.StatusOK, "MANAGERS=widgets", "WEBHOOK_MAX_CONNECTIONS=1", "RESYNC_AGAIN=0s")
	p := agent.pki
	kcp.nextResync(t) // It is sent at the start.

	// A new connection of another address takes the slot of the first one, idle or busy.
	other := p.apiServer(t)
	transport, _ := other.Transport.(*http.Transport) // It is one.
	transport.DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext

	for _, client := range []*http.Client{p.apiServer(t), other} {
		review(t, client, agent.webhook, "one", true) // A dry run is no event.
	}

	n := 1 // On a busy machine, a stall may come before.
	for agent.log.wait(t, "reviews may have been missed: a resync is requested", n)[n-1]["connections"] != 1.0 {
		n++
	}

	kcp.nextResync(t)
	agent.stop(t)
}

// After 1 s an API server may have given up its review, and then it only completes the handshake.
func TestSlowHandshakeLeadsToAResync(t *testing.T) {
	t.Parallel()

	kcp, agent := startWith(t, http.StatusOK, "MANAGERS=widgets", "RESYNC_AGAIN=0s")
	kcp.nextResync(t) // It is sent at the start.
	conn := must(new(net.Dialer).DialContext(t.Context(), "tcp", agent.webhook))(t)
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: agent.pki.ca.Pool(), ServerName: "127.0.0.1"}
	noError(t, tls.Client(slowly{conn}, config).HandshakeContext(t.Context()))
	kcp.nextResync(t)
	noError(t, conn.Close())
	agent.stop(t)
}

// slowly reads after 1 s.
type slowly struct{ net.Conn }

func (s slowly) Read(b []byte) (int, error) {
	time.Sleep(time.Second)
	return s.Conn.Read(b)
}

// Without managers and without reviews, no other line would show that the control plane is out of
// reach. In TLS 1.3 a server refuses a client certificate after the client has ended its handshake.
func TestTheControlPlaneIsTriedAtStart(t *testing.T) {
	t.Parallel()

	const failed = "cannot connect to the control plane: the agent keeps its events and retries"
	p := newPKI(t)
	other := newPKI(t)
	_, cert, key := other.volume.Paths()

	for name, test := range map[string]struct {
		kcp                    *controlPlane
		level, message, reason string
		more                   []string
	}{
		"accepted": {newControlPlane(t, p, http.StatusOK), "INFO", "control plane accepts the connection", "", nil},
		"closed": {
			newControlPlane(t, p, http.StatusOK), "WARN", failed, "connection refused", []string{"KCP_ADDR=127.0.0.1:1"},
		},
		"other CA": {newControlPlane(t, other, http.StatusOK), "WARN", failed, "certificate", nil},
		"refused": {
			newControlPlane(t, p, http.StatusOK), "WARN", failed, "remote error: tls:",
			[]string{"TLS_CERT=" + cert, "TLS_KEY=" + key},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := start(t, p, env(p, test.kcp, test.more...))
			line := s.log.wait(t, test.message, 1)[0]
			if address := fmt.Sprint(line["address"]); line["level"] != test.level || !strings.HasPrefix(address, "127.0.0.1:") {
				t.Errorf("line %v, want level %s and the address", line, test.level)
			}
			if reason := fmt.Sprint(line["error"]); !strings.Contains(reason, test.reason) {
				t.Errorf("error %q, want %q in it", reason, test.reason)
			}

			s.stop(t)
		})
	}
}
