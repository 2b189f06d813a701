package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/kyma"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

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
	there, remote := w.Runtimes["runtime-1"], &v1beta2.Kyma{}
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
