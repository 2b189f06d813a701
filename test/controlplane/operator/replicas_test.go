package operator_test

import (
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
)

// setUpReplicas publishes the leader.
func setUpReplicas(mgr manager.Manager, podIP, podName string) error {
	service := types.NamespacedName{Namespace: "kcp-system", Name: "my-operator-events"}
	replica := controllerruntime.ReplicaEndpoint{
		Operator: "my-operator.example.com", // The LeaderElectionID of the manager.
		Address:  podIP, Ports: map[string]int32{"events": 8082}, Pod: podName,
	}
	endpoint, err := controllerruntime.NewLeaderEndpoint(mgr.GetClient(), service, replica,
		controllerruntime.LeaderEndpointOptions{})
	if err != nil {
		return err
	}
	return mgr.Add(endpoint)
}
