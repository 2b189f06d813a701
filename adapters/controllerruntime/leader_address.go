package controllerruntime

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// LeaderAddress returns a function for the Leader of a [listener.Relay]. The function returns the
// address that a replica has published last by [NewLeaderEndpoint], with the port of that name, as
// host:port. It returns "" if there is none. It answers from memory and may be called concurrently.
//
// The operator needs the rights to list and watch EndpointSlices. Without an entry for them in the
// ByObject options of the cache, it watches those of all namespaces.
func LeaderAddress(
	ctx context.Context, slices cache.Informers, service types.NamespacedName, port string,
) (func() string, error) {
	informer, err := slices.GetInformer(ctx, &discoveryv1.EndpointSlice{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch the leader endpoint of Service %s: %w", service, err)
	}
	leader := &leaderAddress{key: types.NamespacedName{
		Namespace: service.Namespace, Name: service.Name + leaderSuffix,
	}, port: port}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    leader.set,
		UpdateFunc: func(_, object any) { leader.set(object) },
		DeleteFunc: leader.remove,
	}); err != nil {
		return nil, fmt.Errorf("watch the leader endpoint of Service %s: %w", service, err)
	}
	return leader.get, nil
}

// leaderAddress is the address in one EndpointSlice.
type leaderAddress struct {
	key     types.NamespacedName
	port    string
	present atomic.Pointer[string]
}

func (l *leaderAddress) get() string {
	if present := l.present.Load(); present != nil {
		return *present
	}
	return ""
}

func (l *leaderAddress) set(object any) {
	slice, ok := object.(*discoveryv1.EndpointSlice)
	if !ok || client.ObjectKeyFromObject(slice) != l.key {
		return
	}
	address := addressIn(slice, l.port)
	l.present.Store(&address)
}

// remove also gets the last known state of an object after a missed deletion.
func (l *leaderAddress) remove(object any) {
	if gone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	if slice, ok := object.(*discoveryv1.EndpointSlice); ok && client.ObjectKeyFromObject(slice) == l.key {
		l.present.Store(nil)
	}
}

// addressIn returns the address of the only endpoint with the port of that name.
func addressIn(slice *discoveryv1.EndpointSlice, name string) string {
	if len(slice.Endpoints) == 0 || len(slice.Endpoints[0].Addresses) == 0 {
		return ""
	}
	for _, port := range slice.Ports {
		if port.Name != nil && *port.Name == name && port.Port != nil {
			return net.JoinHostPort(slice.Endpoints[0].Addresses[0], strconv.Itoa(int(*port.Port)))
		}
	}
	return ""
}
