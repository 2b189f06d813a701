package main

import (
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
	p := newPKI(t)
	cluster := must(testpki.NewCA("cluster-ca", testpki.Options{}))(t)
	bundle := writeFile(t, filepath.Join(t.TempDir(), "ca.crt"), string(cluster.PEM))
	client := func(name string) *http.Client {
		return p.apiServer(t, must(cluster.Client(name, testpki.Options{}))(t).TLS)
	}
	kcp := newControlPlane(t, p, http.StatusOK)
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
		{"Not A Manager\n", "file with managers is broken, the last good list stays in use", "Not A Manager", 1},
		{"widgets\n", "file with managers is sound again", "", 0},
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
