// Package e2e runs the real agent, and its command check, between a real API server and a real listener.
package e2e

import (
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

const (
	// patience is for a busy machine.
	patience = 3 * time.Minute

	manager = "kyma"
	runtime = "runtime-1"
	domain  = "runtime-1.example.com"
)

// scene is one runtime and its control plane.
type scene struct {
	t          *testing.T
	runtime    *apiserver.ControlPlane
	pki        *lab.PKI
	fleet      *fleet.Fleet
	plane      *lab.Plane
	deliveries atomic.Int64
	// resyncs are those of agents. The fleet asks for one if the first heartbeat of an agent overtakes its first resync.
	resyncs atomic.Int64
}

// clusters is held by one test at a time. Others run beside it.
var clusters sync.Mutex

// newScene returns a control plane with SAN pinning, and a runtime without agent.
func newScene(t *testing.T) *scene {
	t.Helper()
	t.Parallel()
	clusters.Lock()
	t.Cleanup(clusters.Unlock)
	s := &scene{
		t: t, runtime: lab.SharedAPIServer(t, apiserver.Options{}), pki: lab.NewPKI(t),
		fleet: lab.Must(fleet.New(fleet.Options{ResyncJitter: time.Millisecond})),
	}
	s.plane = lab.StartPlane(t, s.pki, lab.PlaneOptions{
		Verifier: lab.Pinning(), Listener: listener.Options{Fleet: s.fleet},
		Delivered: func(d core.Delivery) {
			s.deliveries.Add(1)
			if d.Event.Resync && !d.Event.Time.Equal(d.Received) {
				s.resyncs.Add(1)
			}
		},
	}, manager)
	return s
}

func watchedConfigMaps() watch.Watch {
	return watch.Watch{
		Name:     types.NamespacedName{Namespace: lab.Namespace, Name: "configmaps"},
		Manager:  manager,
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		Selector: watch.Selector{Labels: map[string]string{"watched": "true"}},
	}
}
