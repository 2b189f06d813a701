package installation

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/node"
)

// TestRoomForOnePod: where one pod fits, no pod with new settings ever starts. The former replica
// serves a new watch, also when the webhook configuration was deleted meanwhile.
func TestRoomForOnePod(t *testing.T) {
	rig.SkipShort(t)
	n := node.New(t, node.Options{
		Room: 1, Images: map[string]string{"agent.example.com/agent:v1": rig.Build(t, "cmd/agent")},
		Hosts: map[string]string{"control-plane.example.com:443": rig.Address(rig.FreePort(t))},
	})
	plane := apiserver.StartT(t, apiserver.Options{APIServerArgs: n.APIServerArgs()})
	n.Start(plane)
	w := newWorld(t, plane, "room")
	w.runtime.ControlPlane = "control-plane.example.com:443"
	var status installation.Status
	is := func(state installation.State) func() bool {
		return func() bool {
			status = w.install()
			return status.State == state
		}
	}
	rig.Eventually(t, patience, "the agent is installed", is(installation.Ready))
	agents := types.NamespacedName{Namespace: w.namespace, Name: installation.Name}
	former := running(n, agents)
	w.opts.Settings = map[string]string{"SETTLE": "2s"}
	w.runtime.Watches = []watch.Watch{watchFor("first"), watchFor("second")}
	rig.Eventually(t, patience, "the rollout is stalled", is(installation.Failed))
	if status.Reason != "RolloutStalled" || status.Available != 1 {
		t.Errorf("got %+v, want a stalled rollout and one replica that answers", status)
	}
	want := []string{"default.first", "default.second"}
	if diff := cmp.Diff(want, w.webhooks()); diff != "" {
		t.Fatalf("webhooks (-want +got):\n%s", diff)
	}
	writes := 0
	rig.Eventually(t, patience, "a write reaches the agent for the second manager", func() bool {
		writes++
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("room-", writes)}}
		if err := plane.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		text, _ := n.Get(t.Context(), agents, "metrics", "/metrics") // It may be late.
		return rig.Sum(text, "runtime_watcher_agent_events_accepted_total", `manager="second"`) > 0
	})
	if err := plane.Client.Delete(t.Context(), w.configuration()); err != nil {
		t.Fatal(err)
	}
	w.install()
	if diff := cmp.Diff(want, w.webhooks()); diff != "" {
		t.Errorf("webhooks after their removal (-want +got):\n%s", diff)
	}
	if now := running(n, agents); now != former {
		t.Errorf("%s runs, want the former replica %s", now, former)
	}
}

// running returns the name of the pod that has room.
func running(n *node.Node, deployment types.NamespacedName) (name string) {
	for _, p := range n.Pods(deployment) {
		if !p.Waiting {
			name = p.Name
		}
	}
	return name
}
