package controllerruntime

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	discoveryv1ac "k8s.io/client-go/applyconfigurations/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

const (
	leaderSuffix = "-leader"
	// leaderOwner is the field owner of the EndpointSlice, and its managed-by label.
	leaderOwner = "runtime-watcher-leader"

	defaultRefreshInterval = 10 * time.Second
	leaderCallTimeout      = 5 * time.Second
	leaderRetryWait        = time.Second
)

// LeaderEndpointOptions are the optional settings of [NewLeaderEndpoint]. The zero value is the
// documented default.
type LeaderEndpointOptions struct {
	// RefreshInterval is the time after which the endpoint is written again, because another client
	// may have changed it. Default: 10 s.
	RefreshInterval time.Duration
	// Logger gets failed writes. Default: ctrl.Log.
	Logger *slog.Logger
}

// ReplicaEndpoint is where this replica of the operator takes events.
type ReplicaEndpoint struct {
	// Address is the IP address of the pod.
	Address string
	// Ports has the ports of the pod by their names in the Service. A single one may have the
	// name "".
	Ports map[string]int32
	// Pod is the name of the pod, in the namespace of the Service. A mesh finds the workload of an
	// endpoint by it. Default: none.
	Pod string
}

// leaderEndpoint writes one EndpointSlice. Its fields do not change.
type leaderEndpoint struct {
	writer  client.Writer
	service types.NamespacedName
	address netip.Addr
	ports   map[string]int32
	pod     string
	opts    LeaderEndpointOptions
}

// NewLeaderEndpoint returns a Runnable that makes the replica that leads the only endpoint of a
// Service without selector. A controller manager starts it on the leader only. It fails if one of the
// arguments is missing.
//
// The Runnable applies one EndpointSlice, named as the Service with the suffix "-leader". The next
// leader replaces it in one write, so that two replicas are never endpoints at the same time. Until
// then, a killed leader remains the endpoint. All replicas must have addresses of one family. The
// operator needs the rights to create and patch that EndpointSlice.
//
// It publishes the endpoint until its context ends, and then removes it unless another replica has
// replaced it. That takes at most 10 s. It fails if the first write is forbidden, or if the API
// server finds it invalid. After other errors, and later, it tries again: an API server that has
// just started may forbid each write.
func NewLeaderEndpoint(
	writer client.Writer, service types.NamespacedName, replica ReplicaEndpoint, opts LeaderEndpointOptions,
) (manager.Runnable, error) {
	ip, err := netip.ParseAddr(replica.Address)
	if err != nil || writer == nil || service.Name == "" || service.Namespace == "" || len(replica.Ports) == 0 {
		return nil, fmt.Errorf("leader endpoint of Service %q at %q: want a client, a Service, a valid address "+
			"and at least one port", service, replica.Address)
	}
	if err := option.NoneNegative(opts); err != nil {
		return nil, fmt.Errorf("leader endpoint of Service %q: %w", service, err)
	}
	opts.RefreshInterval = cmp.Or(opts.RefreshInterval, defaultRefreshInterval)
	opts.Logger = cmp.Or(opts.Logger, defaultLogger())
	return &leaderEndpoint{
		writer: writer, service: service, address: ip.Unmap().WithZone(""), ports: maps.Clone(replica.Ports),
		pod: replica.Pod, opts: opts,
	}, nil
}

func (e *leaderEndpoint) NeedLeaderElection() bool { return true }

func (e *leaderEndpoint) Start(ctx context.Context) error {
	version := ""
	for {
		wait := e.opts.RefreshInterval
		applied, err := e.apply(ctx, e.slice(true))
		switch {
		case err == nil:
			version = applied
		case version == "" && (apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err)):
			return err // It lasts.
		case ctx.Err() == nil:
			wait = leaderRetryWait
			e.opts.Logger.WarnContext(ctx, "the endpoint of the leader was not written", "error", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			e.withdraw(ctx, version)
			return nil
		}
	}
}

func (e *leaderEndpoint) withdraw(ctx context.Context, version string) {
	if version == "" {
		return
	}
	_, err := e.apply(ctx, e.slice(false).WithResourceVersion(version))
	if err != nil && !apierrors.IsConflict(err) {
		e.opts.Logger.WarnContext(ctx, "the endpoint of the leader was not removed", "error", err)
	}
}

// apply writes the slice and returns its version, which withdraw needs. It is not canceled.
func (e *leaderEndpoint) apply(
	ctx context.Context, slice *discoveryv1ac.EndpointSliceApplyConfiguration,
) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaderCallTimeout)
	defer cancel()
	// The client writes the response into its argument.
	if err := e.writer.Apply(ctx, slice, client.FieldOwner(leaderOwner), client.ForceOwnership); err != nil {
		return "", fmt.Errorf("leader endpoint of Service %s: %w", e.service, err)
	}
	if slice.ResourceVersion == nil {
		return "", nil
	}
	return *slice.ResourceVersion, nil
}

func (e *leaderEndpoint) slice(withEndpoint bool) *discoveryv1ac.EndpointSliceApplyConfiguration {
	family := discoveryv1.AddressTypeIPv6
	if e.address.Is4() {
		family = discoveryv1.AddressTypeIPv4
	}
	slice := discoveryv1ac.EndpointSlice(e.service.Name+leaderSuffix, e.service.Namespace).
		WithLabels(map[string]string{
			discoveryv1.LabelServiceName: e.service.Name,
			discoveryv1.LabelManagedBy:   leaderOwner,
		}).
		WithAddressType(family)
	for _, name := range slices.Sorted(maps.Keys(e.ports)) {
		port := discoveryv1ac.EndpointPort().WithName(name).WithPort(e.ports[name])
		slice.WithPorts(port.WithProtocol(corev1.ProtocolTCP))
	}
	if withEndpoint {
		endpoint := discoveryv1ac.Endpoint().WithAddresses(e.address.String()).
			WithConditions(discoveryv1ac.EndpointConditions().WithReady(true).WithServing(true).WithTerminating(false))
		if e.pod != "" {
			endpoint.WithTargetRef(corev1ac.ObjectReference().
				WithKind("Pod").WithNamespace(e.service.Namespace).WithName(e.pod))
		}
		slice.WithEndpoints(endpoint)
	}
	return slice
}
