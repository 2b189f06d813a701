package nats_test

import (
	"context"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/informer"
	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	agentlib "github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// TestInformerOverNATS runs an agent that watches a real API server and sends over NATS. A change
// while the NATS server is down arrives afterwards, and so does a deletion.
func TestInformerOverNATS(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server, which -short leaves out")
	}
	plane := apiserver.StartT(t, apiserver.Options{})
	b := newBroker(t, embedded(t), 1, operatorUser(manager), runtimeUser(attacker, manager))
	op, watched := newOperator(), newFleet()
	consume(t, b.operator(manager), op, natsjetstream.Options{Fleet: watched})
	deployments := watch.Watch{
		Name: types.NamespacedName{Namespace: "default", Name: "deployments"}, Manager: manager, Resource: appsv1.SchemeGroupVersion.WithResource("deployments"),
		Selector: watch.Selector{Labels: map[string]string{"watched": "true"}},
	}
	running := must(agentlib.New(t.Context(), agentlib.Parts{
		Source: func(ctx context.Context, inbox *agentlib.Inbox) error {
			source, err := informer.New(plane.Config, inbox, []watch.Watch{deployments},
				informer.Options{Hooks: informer.Hooks{Proved: inbox.Proved}})
			if err != nil {
				return err
			}
			return source.Start(ctx)
		},
		Transport: b.forwarder(attacker, natsjetstream.ForwarderOptions{}),
	}, agentlib.Options{
		Managers: []core.Manager{manager}, MetricsAddress: "127.0.0.1:0",
		Outbox: outbox.Options{
			Settle: -1, Resend: []time.Duration{}, ResendResync: -1, MaxBackoff: time.Second, HeartbeatInterval: time.Second,
		},
	}))
	rig.Run(t, "agent", running.Start)
	fresh := func() bool { return watched.Get(attacker, manager).State == fleet.Fresh }
	eventually(t, "the runtime is fresh", fresh)

	deployment := watchedDeployment()
	apply(t, plane.Client.Create(t.Context(), deployment))
	key := object{attacker, deployment.Name}
	eventually(t, "the operator sees the object", func() bool { return op.generation(key) == 1 })

	b.nodes[0].kill()
	deployment.Spec.Replicas = new(int32(0))
	apply(t, plane.Client.Update(t.Context(), deployment))
	b.nodes[0].launch()
	b.nodes[0].await()
	eventually(t, "the operator sees the change", func() bool { return op.generation(key) == 2 })
	eventually(t, "the runtime is fresh again", fresh)

	handled := op.handled()
	apply(t, plane.Client.Delete(t.Context(), deployment, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	eventually(t, "the operator sees the deletion", func() bool { return op.handled() > handled })
}

func apply(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func watchedDeployment() *appsv1.Deployment {
	labels := map[string]string{"watched": "true"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "object", Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}},
			},
		},
	}
}
