package main

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	networkingv1beta1 "istio.io/client-go/pkg/apis/networking/v1beta1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/kyma"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/lab"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
)

const (
	// gatewayName is the identity of the gateway in config/istio.
	gatewayName = "spiffe://cluster.local/ns/istio-system/sa/istio-ingressgateway-service-account"
	// sidecar is the address from which an Istio sidecar connects.
	sidecar = "127.0.0.6"
	// gatewayRuntime has no cluster.
	gatewayRuntime = "runtime-2"
)

// TestSize holds the budget of the operator: its code without tests and generated code, without the laboratory, the demo
// and the sample module. README.md states it.
func TestSize(t *testing.T) {
	const most = 3700
	lines := 0 // Blank lines do not count.
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && slices.Contains([]string{"internal/lab", "demo", "module"}, filepath.ToSlash(path)) {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(filepath.Base(path), "zz_") {
			return err
		}
		text, err := os.ReadFile(path)
		for line := range bytes.Lines(text) {
			if len(bytes.TrimSpace(line)) > 0 {
				lines++
			}
		}
		return err
	})
	if err != nil || lines > most || lines < most/2 {
		t.Errorf("%d lines, error %v, want at most %d", lines, err, most)
	}
}

// TestLimits holds that README.md states the limits of the code.
func TestLimits(t *testing.T) {
	document := string(rig.Must(os.ReadFile("README.md")))
	for _, row := range []string{
		fmt.Sprintf("| one visit to a runtime | %.0f s.", skr.VisitTime.Seconds()),
		fmt.Sprintf("| a runtime that takes more than %.0f s |", slowAfter.Seconds()),
		fmt.Sprintf("%d other workers", workers),
		fmt.Sprintf("| connections that are kept | %d |", skr.MaxClients),
		fmt.Sprintf("| name of a Kyma | %d characters |", validation.LabelValueMaxLength),
	} {
		if !strings.Contains(document, row) {
			t.Errorf("README.md has no %q", row)
		}
	}
}

func TestWrongFlags(t *testing.T) {
	args := []string{"-events-address=nowhere", "-gateway-names=a", "-pod-ip=10.0.0.1", "-events-bind-address=here", "stray"}
	err := run(t.Context(), args, io.Discard)
	for _, want := range []string{
		"-agent-image", `"nowhere"`, `"stray"`, "-gateway-names needs -proxy-addresses", "-pod-ip needs a port",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %s", err, want)
		}
	}
	for _, wrong := range []string{
		"-proxy-addresses=nowhere", "-agent-setting=nothing", "-listener-secret=secret", "-listener-secret=a/b/c",
	} {
		if err := run(t.Context(), []string{wrong}, io.Discard); err == nil {
			t.Errorf("%s is accepted", wrong)
		}
	}
}

// world is the operator in a lab. The certificates are those of cert-manager.
type world struct{ *lab.Lab }

// TestTakeover deploys config/native, and then config/istio in the same control plane, for a gateway.
func TestTakeover(t *testing.T) {
	w := newWorld(t, lab.Options{
		Runtimes: []string{"runtime-1"}, Replicas: 2, CRDPaths: manifests.Routes(t, watcher.VirtualService),
		OperatorArgs: []string{
			"-agent-setting=HEARTBEAT_INTERVAL=1s", "-agent-setting=CANARY_INTERVAL=1s",
			"-agent-setting=RESEND_AFTER=0s", "-agent-setting=RESEND_RESYNC=0s",
		},
	})
	w.takeover()
	w.gateway()
}

// gateway posts events as a sidecar does. The demo covers runtimes that connect directly.
func (w *world) gateway() {
	w.Helper()
	w.must(w.Plane.Create(w.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "istio-system"}}))
	w.Deploy("istio")
	// Without a kubeconfig, it only gets its certificates.
	w.must(w.Plane.Create(w.Context(), &v1beta2.Kyma{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kcp-system", Name: gatewayRuntime, Annotations: map[string]string{
			controllerruntime.DomainAnnotation: gatewayRuntime + ".example.com",
		}},
		Spec: v1beta2.KymaSpec{Channel: "regular"},
	}))
	w.Eventually("the gateway has its key material", func() bool {
		secret := &corev1.Secret{}
		err := w.Plane.Get(w.Context(), client.ObjectKey{Namespace: "istio-system", Name: "watcher-listener"}, secret)
		return err == nil && len(secret.Data[corev1.TLSCertKey]) > 0
	})
	w.Eventually("both Watchers have a route", func() bool {
		return w.exists(&networkingv1beta1.VirtualService{}, "kyma") && w.exists(&networkingv1beta1.VirtualService{}, "modules")
	})
	header := rig.ByGateway(w.certificate(gatewayRuntime + "-watcher-tls"))
	stranger := rig.BySidecar(header, "spiffe://cluster.local/ns/default/sa/other")
	for _, manager := range []core.Manager{kymaManager, moduleManager} {
		w.Eventually("an event for "+string(manager)+" is accepted", func() bool {
			return w.post(manager, sidecar, rig.BySidecar(header, gatewayName)) == http.StatusAccepted
		})
		for name, status := range map[string]int{
			"without header":     w.post(manager, sidecar, ""),
			"without sidecar":    w.post(manager, "127.0.0.1", rig.BySidecar(header, gatewayName)),
			"without gateway":    w.post(manager, sidecar, header),
			"by another gateway": w.post(manager, sidecar, stranger),
		} {
			if status != http.StatusUnauthorized {
				w.Errorf("%s: status %d, want 401", name, status)
			}
		}
	}
	w.Eventually("the events have caused reconciles", func() bool {
		return w.Reconciles(w.Context(), string(kymaManager), "resync") > 0
	})
}

// newWorld starts API servers and cert-manager. The operator does not run yet.
func newWorld(t *testing.T, opts lab.Options) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real API server, which -short leaves out")
	}
	w := &world{lab.New(t, opts)}
	w.Build()
	w.StartAPIServers()
	w.StartCertManager()
	return w
}

func (w *world) must(err error) {
	w.Helper()
	rig.NoError(w, err)
}

func (w *world) exists(object client.Object, name string) bool {
	return w.Plane.Get(w.Context(), client.ObjectKey{Namespace: "kcp-system", Name: name}, object) == nil
}

// certificate returns the one that cert-manager has issued in a Secret.
func (w *world) certificate(name string) *x509.Certificate {
	w.Helper()
	secret := &corev1.Secret{}
	w.Eventually("there is a certificate for the runtime", func() bool {
		return w.exists(secret, name) && len(secret.Data[corev1.TLSCertKey]) > 0
	})
	block, _ := pem.Decode(secret.Data[corev1.TLSCertKey])
	leaf, err := x509.ParseCertificate(block.Bytes)
	w.must(err)
	return leaf
}

// post sends a resync of gatewayRuntime from an address, and returns the status of the answer, 0
// without an answer.
func (w *world) post(manager core.Manager, from, header string) int {
	w.Helper()
	leader, err := w.Leader(w.Context())
	w.must(err)
	id := strconv.FormatInt(time.Now().UnixNano(), 10)
	batch := core.Batch{
		Source: gatewayRuntime, Events: []core.Numbered{{WatchEvent: core.WatchEvent{Resync: true}, ID: id}},
	}
	body, err := contract.V3.Encode(&batch)
	w.must(err)
	request, err := http.NewRequestWithContext(w.Context(), http.MethodPost,
		"http://"+leader.Events+contract.V3.Path(manager), bytes.NewReader(body.Body))
	w.must(err)
	request.Header.Set("Content-Type", contract.V3.ContentType())
	if header != "" {
		request.Header.Set("X-Forwarded-Client-Cert", header)
	}
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	sender := &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DialContext: dialer.DialContext, DisableKeepAlives: true,
	}}
	answer, err := sender.Do(request)
	if err != nil {
		return 0
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}

// takeover kills the leader of two replicas, and changes a runtime at that moment. The other replica
// must lead, and must get the event. No other event is for the controller of Kymas: resends are off,
// no resync is pending, and the operator does not change the spec of the user's Kyma.
func (w *world) takeover() {
	w.Helper()
	w.Deploy("native")
	w.ApplyFile("samples/keda-1.0.0.yaml")
	w.Register("runtime-1", nil)
	w.Eventually("the user enables a module", func() bool { return w.setModules(v1beta2.Module{Name: "keda"}) == nil })
	w.Eventually("the module is installed, and the runtime is watched", func() bool {
		return w.findManager() == nil && w.isFresh() && w.isInstalled() && w.hasMetrics(
			`runtime_watcher_installation_runtimes{reason="",state="Ready"} 1`,
			`runtime_watcher_fleet_events_pending{manager="lifecycle-manager"} 0`,
		)
	})
	killed, err := w.Leader(w.Context())
	w.must(err)
	killed.Kill()
	w.must(w.setModules())
	w.Eventually("the other replica leads", func() bool {
		leader, err := w.Leader(w.Context())
		return err == nil && leader != killed
	})
	w.Eventually("the event starts a reconcile, or a resync in its place after a stall of the agent", func() bool {
		log, err := os.ReadFile(filepath.Join(w.Dir, "logs", "runtime-1-runtime-watcher.log"))
		count := func(cause string) int { return w.Reconciles(w.Context(), string(kymaManager), cause) }
		return err == nil && (count("event") > 0 ||
			bytes.Contains(log, []byte("a resync is requested")) && count("resync") > 0)
	})
	w.Eventually("the module is removed", func() bool { return apierrors.IsNotFound(w.findManager()) })
}

// setModules edits the Kyma in the runtime, as a user does.
func (w *world) setModules(modules ...v1beta2.Module) error {
	w.Helper()
	there := w.Runtimes["runtime-1"]
	remote := &v1beta2.Kyma{}
	err := there.Get(w.Context(), client.ObjectKey{Namespace: skr.Namespace, Name: kyma.RemoteName}, remote)
	if err != nil {
		return err
	}
	before := remote.DeepCopy()
	remote.Spec.Modules = modules
	return there.Patch(w.Context(), remote, client.MergeFrom(before))
}

// findManager returns nil if the Deployment of the module is in the runtime.
func (w *world) findManager() error {
	w.Helper()
	key := client.ObjectKey{Namespace: "keda", Name: "keda-manager"}
	return w.Runtimes["runtime-1"].Get(w.Context(), key, &appsv1.Deployment{})
}

// isFresh reports whether the runtime is fresh for both controllers.
func (w *world) isFresh() bool {
	w.Helper()
	known, err := w.Fleet(w.Context(), "runtime-1")
	return err == nil && len(known) == 2 && known[0].State == "fresh" && known[1].State == "fresh"
}

// isInstalled reports whether the Kyma has the condition that its runtime has the agent.
func (w *world) isInstalled() bool {
	w.Helper()
	stored := &v1beta2.Kyma{}
	return w.exists(stored, "runtime-1") && meta.IsStatusConditionTrue(stored.Status.Conditions, v1beta2.WatcherInstalled)
}

// hasMetrics reports whether the leader has all lines.
func (w *world) hasMetrics(lines ...string) bool {
	w.Helper()
	text, err := w.Metrics(w.Context())
	return err == nil && !slices.ContainsFunc(lines, func(line string) bool { return !strings.Contains(string(text), line+"\n") })
}
