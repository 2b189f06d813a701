package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// A CA of the whole cluster signs the certificates of kubelets, too.
func TestAClientWithAnotherNameIsRefused(t *testing.T) {
	t.Parallel()

	p, kcp := newPlane(t)
	cluster := must(testpki.NewCA("cluster-ca", testpki.Options{}))(t)
	bundle := writeFile(t, filepath.Join(t.TempDir(), "ca.crt"), string(cluster.PEM))
	client := func(name string) *http.Client {
		return p.apiServer(t, must(cluster.Client(name, testpki.Options{}))(t).TLS)
	}

	s := start(t, p, env(p, kcp, "MANAGERS=widgets", "HEARTBEAT_INTERVAL=50ms",
		"WEBHOOK_CLIENT_CA="+bundle, "WEBHOOK_CLIENT_NAMES=kube-apiserver,front-proxy-client"))
	s.refuses(t, client("system:node:worker-1"))
	if line := s.log.wait(t, "TLS handshake failed", 1)[0]; line["cause"] != "untrusted" {
		t.Errorf("log %v, want the cause untrusted", line)
	}

	before := time.Now().Truncate(time.Second)
	s.client = client("front-proxy-client")
	s.review(t, "ignored", true) // A dry run is a review, but no event.
	kcp.awaitBeat(t, func(b *core.Heartbeat) bool { return !b.LastReview.Before(before) })
	s.stop(t)
}

// Invented managers must not take the room of the real one.
func TestOtherManagersGet404(t *testing.T) {
	t.Parallel()

	file := writeFile(t, filepath.Join(t.TempDir(), "managers"), "# of a ConfigMap\n\nwidgets\n")
	for setting, protocol := range map[string]string{
		"MANAGERS=gadgets,widgets": "HTTP/2.0", "MANAGERS_FILE=" + file: "HTTP/1.1", // The latter names one.
	} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()

			kcp, s := startWith(t, http.StatusOK, setting, "KCP_CONTRACT=v3")
			kcp.nextResync(t) // A pod that is replaced gets no review to learn its managers from.
			for range 2 {
				status, body := do(t, s.client, http.MethodPost, "https://"+s.webhook+"/validate/invented", reviewBody("x", false))
				if status != http.StatusNotFound {
					t.Errorf("status %d %s for an invented manager, want 404", status, body)
				}
			}

			s.review(t, "demo", false)
			if got := kcp.next(t); got.path != "/v3/widgets/events" || got.proto != protocol {
				t.Errorf("event came to %s by %s, want /v3/widgets/events by %s", got.path, got.proto, protocol)
			}
			if strings.Contains(s.scrape(t), "invented") {
				t.Error("an invented manager has metrics")
			}

			s.stop(t)
		})
	}
}

// The control plane and the metrics of the agent name the fault, and its end.
func TestABrokenManagersFileIsReported(t *testing.T) {
	t.Parallel()

	file := writeFile(t, filepath.Join(t.TempDir(), "managers"), "widgets\n")
	kcp, s := startWith(t, http.StatusOK, "MANAGERS_FILE="+file, "HEARTBEAT_INTERVAL=1s")
	for _, step := range []struct {
		text, message, fault string
		broken               float64
	}{
		{"Not A Manager\n", "the file with managers is broken: the last good list stays in use", "Not A Manager", 1},
		{"widgets\n", "the file with managers is valid again", "", 0},
	} {
		writeFile(t, file, step.text)
		s.log.wait(t, step.message, 1)
		if got := count(t, s.scrape(t), "runtime_watcher_agent_managers_file_broken"); got != step.broken {
			t.Errorf("%q: the metric is %v, want %v", step.text, got, step.broken)
		}

		kcp.drain()
		kcp.awaitBeat(t, func(b *core.Heartbeat) bool {
			return (b.ConfigError == "") == (step.fault == "") && strings.Contains(b.ConfigError, step.fault)
		})
	}

	s.stop(t)
}

// drain forgets the heartbeats so far.
func (kcp *controlPlane) drain() {
	for range len(kcp.beats) {
		<-kcp.beats
	}
}

// A pod kept its runtime fresh by one review in 10 min, although the API server called nothing.
func TestHeartbeatsReportFailedHandshakesAndNoReviewOfAStranger(t *testing.T) {
	t.Parallel()

	kcp, s := startWith(t, http.StatusOK, "MANAGERS=widgets", "HEARTBEAT_INTERVAL=50ms")
	kcp.awaitBeat(t, func(b *core.Heartbeat) bool { return b.LastReview.IsZero() && b.WebhookFailures == 0 })
	var failures int64
	s.review(t, "ignored", true) // Any pod can send one.

	// A scanner of ports is no evidence.
	scanner := must((&net.Dialer{}).DialContext(t.Context(), "tcp", s.webhook))(t)
	if _, err := scanner.Write([]byte("GET / HTTP/1.0\r\n\r\n")); err != nil {
		t.Fatal(err)
	}

	s.log.wait(t, "TLS handshake failed", 1)
	_ = scanner.Close() // It was answered.

	// An API server with an old caBundle.
	stranger := &tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: newPKI(t).ca.Pool()}}
	if conn, err := stranger.DialContext(t.Context(), "tcp", s.webhook); err == nil {
		_ = conn.Close()
		t.Fatal("the client accepts a certificate of another CA")
	}

	line := s.log.wait(t, "TLS handshake failed", 2)[1]
	if line["level"] != "WARN" || line["cause"] != "bad_certificate" || line["server"] != "webhook" ||
		!strings.HasPrefix(fmt.Sprint(line["remote"]), "127.0.0.1:") || line["error"] == nil {
		t.Errorf("log %v, want a warning with cause, address and error", line)
	}
	if count(t, s.scrape(t), `runtime_watcher_agent_tls_handshake_failures_total\{cause="bad_certificate"\}`) != 1 {
		t.Error("the failed handshake is not counted by its cause")
	}

	kcp.drain()
	var proof time.Time
	for range 3 {
		kcp.awaitBeat(t, func(b *core.Heartbeat) bool { failures, proof = b.WebhookFailures, b.LastReview; return true })
	}

	if failures != 1 || !proof.IsZero() {
		t.Errorf("heartbeats report %d failed handshakes, proof %v, want that of the API server only, and no proof", failures, proof)
	}

	s.stop(t)
}

// An API server would reject this certificate, and nothing else would show it before the first
// write.
func TestACertificateThatCannotServeIsLogged(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		opts testpki.Options
		want string // empty: no warning
	}{
		"client only": {
			testpki.Options{Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
			"extended key usage without serverAuth, want serverAuth or none",
		},
		"both": {testpki.Options{Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			p := newPKI(t)
			p.write(t, must(p.ca.Server("runtime-1", test.opts))(t))
			s := start(t, p, env(p, newControlPlane(t, p, http.StatusOK)))
			lines, _ := s.log.all("API servers reject the certificate of the webhook")
			s.stop(t)

			if got := fmt.Sprint(lines); (len(lines) > 0) != (test.want != "") || !strings.Contains(got, test.want) {
				t.Errorf("log %v, want %q", lines, test.want)
			}
		})
	}
}
