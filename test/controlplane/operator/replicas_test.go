package operator_test

import (
	"context"
	"crypto/tls"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// setUpReplicas publishes the leader, and returns the option of the listener that relays to it. own is
// the key material of the replicas, and runtimes returns the CA bundle of the runtimes.
func setUpReplicas(
	ctx context.Context, mgr manager.Manager, podIP, podName string, own keys.Source, runtimes listener.RootsFunc,
) (*listener.Relay, error) {
	service := types.NamespacedName{Namespace: "kcp-system", Name: "my-operator-events"}
	endpoint, err := controllerruntime.NewLeaderEndpoint(mgr.GetClient(), service, podIP,
		map[string]int32{"events": 8082, "relay": 8083}, controllerruntime.LeaderEndpointOptions{Pod: podName})
	if err != nil {
		return nil, err
	}
	if err := mgr.Add(endpoint); err != nil {
		return nil, err
	}
	leader, err := controllerruntime.LeaderAddress(ctx, mgr.GetCache(), service, "relay")
	if err != nil {
		return nil, err
	}
	const name = "my-operator.kcp-system.svc"
	isReplica := listener.ProxyCertificate(keys.Roots(own), name)
	return &listener.Relay{
		Addr:   ":8083",
		Server: keys.ServerTLSConfig(own),
		Client: func() (*tls.Config, error) { return keys.ClientTLSConfig(own, name) },
		Peers:  listener.FromXFCC(isReplica, runtimes, listener.PeerOptions{}),
		Leader: leader,
	}, nil
}
