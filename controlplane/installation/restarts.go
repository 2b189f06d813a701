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

// restart returns the value of annotationRestart. live is the ConfigMap as it was read, nil if
// there is none. The agents restart for the managers.
func (i *Installer) restart(live *unstructured.Unstructured, managers []core.Manager) (last string) {
	if live != nil {
		last = remote.Token(live.GetAnnotations()[i.key(annotationRestart)])
	}
	if len(managers) == 0 {
		return last
	}
	return shortSum(sumOf(last, managers))
}

// restarted is the last restart of the agents of a runtime after a correction.
type restarted struct {
	restart string
	until   time.Time // the end of the pause
	pause   time.Duration
}

// pace returns the value of annotationRestart for the pods, and records a restart. The value is
// the one that is due, unless the agents have restarted not long ago, as others undo each
// correction. The pauses grow to an hour. After a new start of this process, the agents restart
// once without a pause.
func (i *Installer) pace(id core.RuntimeID, due string, former, missed bool) string {
	found, known := i.restarts.Load(id)
	last, _ := found.(restarted)
	now := i.opts.Now()
	if now.Before(last.until) && !former {
		return last.restart
	}

	isRestart := due != last.restart && (known || missed)
	if !isRestart {
		return due
	}
	pause := time.Minute
	if now.Sub(last.until) < verifyAfter {
		pause = min(2*last.pause+pause, verifyAfter)
	}
	i.restarts.Store(id, restarted{due, now.Add(pause), pause})
	return due
}
