package observability

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// TestPodMonitor fails when the PodMonitor selects no pod of the manifests, or a port that they do
// not have.
func TestPodMonitor(t *testing.T) {
	type podMonitor struct {
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Selector  metav1.LabelSelector `json:"selector"`
			Endpoints []struct {
				Port string `json:"port"`
			} `json:"podMetricsEndpoints"`
		} `json:"spec"`
	}
	monitor := readYAML[podMonitor](t, folder+"/podmonitor.yaml")
	agent := readYAML[appsv1.Deployment](t, "controlplane/config/agent/deployment.yaml")
	selector := lab.Must(metav1.LabelSelectorAsSelector(&monitor.Spec.Selector))
	if !selector.Matches(labels.Set(agent.Spec.Template.Labels)) || monitor.Namespace != agent.Namespace {
		t.Errorf("selector %s in %s, want the pods of the Deployment in %s", selector, monitor.Namespace, agent.Namespace)
	}
	ports := agent.Spec.Template.Spec.Containers[0].Ports
	for _, endpoint := range monitor.Spec.Endpoints {
		if !slices.ContainsFunc(ports, func(p corev1.ContainerPort) bool { return p.Name == endpoint.Port }) {
			t.Errorf("the container has no port %q", endpoint.Port)
		}
	}
}
