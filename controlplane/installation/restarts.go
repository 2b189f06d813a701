package installation

import (
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// annotationRestart has a value that changes when a manager is removed, or its webhook is
// corrected. It is on the ConfigMap and on the pods, which are replaced then. A running agent
// would still send heartbeats for a manager that its file no longer lists. New agents send a
// resync, which replaces the events of the writes that a webhook has missed.
const annotationRestart = "managers-removed"

// lastRestart returns the value of annotationRestart on the ConfigMap of a runtime, "" without a
// ConfigMap. key is the annotation in the names of the operator.
func lastRestart(live *unstructured.Unstructured, key string) string {
	if live == nil {
		return ""
	}
	return remote.Token(live.GetAnnotations()[key])
}

// nextRestart returns the value of annotationRestart after last. The agents restart for the
// managers, so without one the value stays.
func nextRestart(last string, managers []core.Manager) string {
	if len(managers) == 0 {
		return last
	}
	return shortSum(sumOf(last, managers))
}

// restarts contain the last restart of the agents of each runtime after a correction. After a new
// start of this process, the agents restart once without a pause.
type restarts struct {
	perRuntime[restarted]
}

// restarted is a restart of the agents of a runtime.
type restarted struct {
	restart string        // the value of annotationRestart
	until   time.Time     // the end of the pause
	pause   time.Duration // before the next restart
}

// cause is why the agents of a runtime restart.
type cause struct {
	former bool // They serve a manager that no watch names now.
	missed bool // Others have changed webhooks, so that the agents missed writes.
}

// scheduleRestart returns the value of annotationRestart for the pods, and records a restart. The
// value is the one that is due, unless the agents have restarted not long ago, because others undo
// each correction. The pauses grow to an hour. A manager that was removed does not wait.
func (r *restarts) scheduleRestart(id core.RuntimeID, due string, why cause, now time.Time) (pods string) {
	last, known := r.load(id)
	isPaused := now.Before(last.until)
	if isPaused && !why.former {
		return last.restart
	}

	mayRestart := known || why.missed
	if due == last.restart || !mayRestart {
		return due
	}

	pause := last.nextPause(now)
	r.store(id, restarted{restart: due, until: now.Add(pause), pause: pause})
	return due
}

// nextPause is a minute after an hour without a restart, and about twice the last pause before
// that.
func (r restarted) nextPause(now time.Time) time.Duration {
	const first = time.Minute
	if now.Sub(r.until) >= verifyAfter {
		return first
	}
	return min(2*r.pause+first, verifyAfter)
}
