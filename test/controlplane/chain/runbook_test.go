package chain

import (
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// switchesOffAndOn walks the runbook. While the watcher is off, no write asks the agent, and the
// installer restores nothing.
func (w *world) switchesOffAndOn() {
	w.t.Helper()
	functions := "fleet() { :; }\n" + rig.ShortKubectl(w.t, "kcp", w.plane.Kubeconfig, rig.Namespace) +
		rig.ShortKubectl(w.t, "skr", w.runtime.Kubeconfig, installation.Name)
	blocks := rig.Runbook(w.t, "### Switch the watcher off in one runtime")
	for n := range blocks {
		blocks[n] = strings.ReplaceAll(blocks[n], "kyma -n kcp-system", "configmap -n "+rig.Namespace)
	}
	label, off, _ := strings.Cut(blocks[0], "skr delete ")

	// A configuration that comes back within the wait fails the commands.
	off = strings.Replace("skr delete "+off, "--timeout=150s", "--timeout=3s && exit 9 || true", 1)
	if out := rig.Shell(w.t, functions, label); !strings.HasPrefix(out, "configmap/") {
		w.t.Errorf("the first command prints a value, as if the agent kept its configuration:\n%s", out)
	}
	w.waitFor(installation.Progressing, "Skipped")
	rig.Shell(w.t, functions, off)
	w.eventually("the runtime is stale, and no pod is left", func() bool {
		now := w.fleet.Get(stays, steady)
		return now.Reason == fleet.ReasonStopped && len(w.node.Pods(deployment())) == 0
	})
	before := rig.FailedOpen(w.t, w.runtime)
	w.must(w.create(w.t.Context(), "off", "first"))
	if after := rig.FailedOpen(w.t, w.runtime); after != before {
		w.t.Errorf("%v writes waited for an agent", after-before)
	}
	w.checksWhileOff(functions)

	began := time.Now()
	if out := rig.Shell(w.t, functions, blocks[1]); !strings.Contains(out, "condition met") {
		w.t.Errorf("the configuration is not restored:\n%s", out)
	}
	w.eventually("the runtime is fresh", func() bool { return w.fleet.Get(stays, steady).State == fleet.Fresh })
	w.reaches("first")
	w.t.Logf("on again after %.1f s", time.Since(began).Seconds())
}

// checksWhileOff starts the pods as the runbook of a managed API server does. The check then proves
// that the API server connects to the pods, although the label keeps the installer from restoring
// the webhooks, so no write waits.
func (w *world) checksWhileOff(functions string) {
	w.t.Helper()
	start := rig.Runbook(w.t, "#### Check without webhooks")[0]
	rig.Shell(w.t, functions+"check() { :; }\n", start) // The node runs the check below.
	w.settled()

	// The API server connects to the pods, and calls none.
	w.node.AwaitCheck(w.t, deployment(), "FAIL  webhook ", "ok    reach ")

	err := w.runtime.Client.Get(w.t.Context(), types.NamespacedName{Name: installation.Name},
		&admissionregistrationv1.ValidatingWebhookConfiguration{})
	if !apierrors.IsNotFound(err) {
		w.t.Errorf("the webhook configuration: %v, want none while the watcher is off", err)
	}
}
