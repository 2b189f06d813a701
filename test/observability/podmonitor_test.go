package observability

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// TestPodMonitor fails when the PodMonitor selects no pod of the manifests, or a port that they do
// not have.
func TestPodMonitor(t *testing.T) {
	var monitor struct {
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Selector  metav1.LabelSelector `json:"selector"`
			Endpoints []struct {
				Port string `json:"port"`
			} `json:"podMetricsEndpoints"`
		} `json:"spec"`
	}
	parseYAML(t, folder+"/podmonitor.yaml", &monitor)
	var agent appsv1.Deployment
	parseYAML(t, "controlplane/config/agent/deployment.yaml", &agent)
	selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
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

func parseYAML(t *testing.T, file string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(read(t, file)), into); err != nil {
		t.Fatal(err)
	}
}
