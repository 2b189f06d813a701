package controllerruntime

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	discoveryv1ac "k8s.io/client-go/applyconfigurations/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

const (
	leaderSuffix = "-leader"
	// leaderOwner is the managed-by label of the EndpointSlice.
	leaderOwner = "runtime-watcher-leader"
	// leaderOperator is an annotation of the EndpointSlice, with the operator that it belongs to.
	leaderOperator = leaderOwner + "/operator"

	defaultRefreshInterval = 10 * time.Second
	leaderCallTimeout      = 5 * time.Second
	leaderRetryWait        = time.Second
)

// LeaderEndpointOptions are the optional settings of [NewLeaderEndpoint]. The zero value is the
// documented default.
type LeaderEndpointOptions struct {
	// RefreshInterval is the interval at which the endpoint is written again, because another
	// client may have changed it. Default: 10 s.
	RefreshInterval time.Duration
	// Logger gets failed writes. Default: ctrl.Log.
	Logger *slog.Logger
}

// ReplicaEndpoint is the endpoint at which this replica of the operator receives events.
type ReplicaEndpoint struct {
	// Operator is the identity of the operator in the namespace of the Service. It must be the same
	// for all replicas and after each upgrade: use the LeaderElectionID of the manager. Required.
	Operator string
	// Address is the IP address of the pod.
	Address string
	// Ports maps the names of ports in the Service to the ports of the pod. A single port may have
	// the name "".
	Ports map[string]int32
	// Pod is the name of the pod, in the namespace of the Service. A mesh uses it to find the
	// workload of the endpoint. Default: none.
	Pod string
}

// leaderEndpoint writes one EndpointSlice while the replica leads. Only the goroutine of Start uses
// uid. The other fields do not change, except isAdded.
type leaderEndpoint struct {
	writer   client.Writer
	service  types.NamespacedName
	operator string
	address  netip.Addr
	ports    map[string]int32
	pod      string
	opts     LeaderEndpointOptions
	uid      types.UID // of the slice, as this replica has found or made it

	// isAdded is true once a controller manager has the endpoint, or Start was called.
	isAdded atomic.Bool
}

// NewLeaderEndpoint returns a Runnable that makes the leading replica the only endpoint of a
// Service without a selector. A controller manager starts it only on the leader. NewLeaderEndpoint
// fails if an argument is missing.
//
// The Runnable applies one EndpointSlice, named as the Service with the suffix "-leader". The next
// leader replaces it in one write, so that two replicas are never endpoints at the same time.
// Until then, a killed leader remains the endpoint. The addresses of all replicas must belong to
// the same address family. The operator needs the rights to create and patch that EndpointSlice.
//
// If another operator or program has created an EndpointSlice with that name, the EndpointSlice
// stays unchanged and Start fails. To hand it over, give it the label
// endpointslice.kubernetes.io/managed-by: runtime-watcher-leader and the annotation
// runtime-watcher-leader/operator with the value of [ReplicaEndpoint].Operator. An EndpointSlice of
// an earlier version of this package has no such annotation and is taken over.
//
// The Runnable publishes the endpoint until the context of Start ends and then removes it, unless
// another replica has replaced it. The removal takes at most 10 s. Start fails if the first write
// is forbidden or invalid. After any other error, and after later errors, Start retries, because an
// API server that has just started may forbid each write.
//
// If the Runnable was not added to a controller manager within a minute, a line is logged.
func NewLeaderEndpoint(
	writer client.Writer, service types.NamespacedName, replica ReplicaEndpoint, opts LeaderEndpointOptions,
) (manager.Runnable, error) {
	ip, err := netip.ParseAddr(replica.Address)
	isService := service.Name != "" && service.Namespace != ""
	isAddress := err == nil && len(replica.Ports) > 0
	if writer == nil || !isService || !isAddress {
		return nil, fmt.Errorf("leader endpoint of Service %q at %q: want a client, a Service, a valid address "+
			"and at least one port", service, replica.Address)
	}
	if replica.Operator == "" {
		return nil, fmt.Errorf("leader endpoint of Service %q: Operator: want the identity of the operator, "+
			"such as the LeaderElectionID of its manager, have none", service)
	}
	if err := option.NoneNegative(opts); err != nil {
		return nil, fmt.Errorf("leader endpoint of Service %q: %w", service, err)
	}

	opts.RefreshInterval = cmp.Or(opts.RefreshInterval, defaultRefreshInterval)
	opts.Logger = cmp.Or(opts.Logger, defaultLogger())
	e := &leaderEndpoint{
		writer: writer, service: service, operator: replica.Operator,
		address: ip.Unmap().WithZone(""), ports: maps.Clone(replica.Ports),
		pod: replica.Pod, opts: opts,
	}

	time.AfterFunc(notAdded, e.warnUnlessAdded)
	return e, nil
}

// NeedLeaderElection implements [manager.LeaderElectionRunnable]. A controller manager calls it
// when the endpoint is added, even on a replica that never leads and never calls Start.
func (e *leaderEndpoint) NeedLeaderElection() bool {
	e.isAdded.Store(true)
	return true
}

// warnUnlessAdded reports an endpoint that was made and not added. Otherwise nothing would fail:
// the Service has no endpoint, and the senders keep their events.
func (e *leaderEndpoint) warnUnlessAdded() {
	if e.isAdded.Load() {
		return
	}
	e.opts.Logger.Warn("the endpoint of the leader was not added within a minute, "+
		"so the Service has no endpoint: pass the endpoint to mgr.Add", slog.String("service", e.service.String()))
}

// errForeignSlice means that the EndpointSlice belongs to another operator, or to another program.
var errForeignSlice = errors.New("want an EndpointSlice of this operator")

func (e *leaderEndpoint) Start(ctx context.Context) error {
	e.isAdded.Store(true)

	version := ""
	for {
		wait := e.opts.RefreshInterval
		applied, err := e.publishAddress(ctx)

		switch {
		case err == nil:
			version = applied
		case version == "" && isLasting(err):
			return err
		case ctx.Err() == nil:
			wait = leaderRetryWait
			e.opts.Logger.WarnContext(ctx, "cannot write the endpoint of the leader", "error", err)
		}

		select {
		case <-time.After(wait):
		case <-ctx.Done():
			e.withdrawAddress(ctx, version)
			return nil
		}
	}
}

// isLasting reports whether the first write fails for good.
func isLasting(err error) bool {
	isRefused := apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err)
	return isRefused || errors.Is(err, errForeignSlice)
}

// withdrawAddress removes this replica from the slice, and leaves the slice to the next leader. The
// version comes from the last own write: a conflict means that another replica has replaced it.
func (e *leaderEndpoint) withdrawAddress(ctx context.Context, version string) {
	if version == "" {
		return
	}
	_, err := e.applySlice(ctx, e.newSlice(false).WithResourceVersion(version), client.ForceOwnership)
	if err != nil && !apierrors.IsConflict(err) {
		e.opts.Logger.WarnContext(ctx, "cannot remove the endpoint of the leader", "error", err)
	}
}

// publishAddress makes this replica the endpoint, unless the slice belongs to another client, and
// returns the version of the slice.
func (e *leaderEndpoint) publishAddress(ctx context.Context) (version string, err error) {
	if e.uid == "" {
		return e.takeOver(ctx)
	}

	// Without force, the apply fails if another client has changed a field, such as the mark. The
	// API server also refuses a UID other than the UID of the present slice.
	version, err = e.applySlice(ctx, e.newSlice(true).WithUID(e.uid))
	if apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
		return e.takeOver(ctx)
	}
	return version, err
}

// takeOver reads the mark of the slice, and makes this replica the endpoint if the slice belongs to
// this operator, or if there is no slice.
func (e *leaderEndpoint) takeOver(ctx context.Context) (version string, err error) {
	var read string
	e.uid, read, err = e.probeSlice(ctx)
	if err != nil {
		return "", err
	}
	if ctx.Err() != nil { // The end has a deadline.
		return "", ctx.Err()
	}

	slice := e.newSlice(true)
	var opts []client.ApplyOption
	// Without force, the apply changes no field of another client that has just created the slice.
	if e.uid != "" {
		// Another operator may take the slice over in the meantime.
		slice.WithUID(e.uid).WithResourceVersion(read)
		opts = append(opts, client.ForceOwnership)
	}

	version, err = e.applySlice(ctx, slice, opts...)
	if apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
		e.uid = "" // The slice is gone, or another one has its name.
		return "", err
	}

	if err == nil && slice.UID != nil {
		e.uid = *slice.UID
	}
	return version, err
}

// leaderProbe is the field owner of the dry run.
const leaderProbe = leaderOwner + "-probe"

// probeSlice returns UID and version of the slice, "" if there is none. It fails with
// errForeignSlice unless the slice has the mark of this package. A dry run needs no right to read,
// and no cache: its answer is the slice as it would be with the mark.
func (e *leaderEndpoint) probeSlice(ctx context.Context) (uid types.UID, version string, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaderCallTimeout)
	defer cancel()

	marked := &unstructured.Unstructured{}
	marked.SetGroupVersionKind(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"))
	marked.SetNamespace(e.service.Namespace)
	marked.SetName(e.service.Name + leaderSuffix)
	marked.SetLabels(map[string]string{discoveryv1.LabelManagedBy: leaderOwner})

	err = e.writer.Apply(ctx, client.ApplyConfigurationFromUnstructured(marked),
		client.FieldOwner(leaderProbe), client.DryRunAll)
	switch {
	case apierrors.IsInvalid(err):
		return "", "", nil // There is none: a new slice needs more fields.
	case apierrors.IsConflict(err): // Another client has set another mark.
		return "", "", fmt.Errorf("%w: %s/%s: %w", errForeignSlice, marked.GetNamespace(), marked.GetName(), err)
	case err != nil:
		return "", "", fmt.Errorf("leader endpoint of Service %s: %w", e.service, err)
	}

	isOther := func(entry metav1.ManagedFieldsEntry) bool { return entry.Manager != leaderProbe }
	hasMark := func(entry metav1.ManagedFieldsEntry) bool {
		return isOther(entry) && entry.FieldsV1 != nil &&
			//nolint:staticcheck // Kubernetes 0.35 has no accessor yet.
			bytes.Contains(entry.FieldsV1.Raw, []byte(`"f:`+discoveryv1.LabelManagedBy+`"`))
	}

	managed := marked.GetManagedFields()
	if slices.ContainsFunc(managed, isOther) && !slices.ContainsFunc(managed, hasMark) {
		return "", "", fmt.Errorf("%w: %s/%s has no label %s: %s", errForeignSlice,
			marked.GetNamespace(), marked.GetName(), discoveryv1.LabelManagedBy, leaderOwner)
	}
	if operator := marked.GetAnnotations()[leaderOperator]; operator != "" && operator != e.operator {
		return "", "", fmt.Errorf(
			"%w: %s/%s belongs to operator %.80q, and this operator is %.80q: use another Service",
			errForeignSlice, marked.GetNamespace(), marked.GetName(), operator, e.operator)
	}
	return marked.GetUID(), marked.GetResourceVersion(), nil
}

// fieldOwner differs for each operator, so that the API server sees a conflict between two
// operators that create the slice in parallel. It has at most 128 characters.
func (e *leaderEndpoint) fieldOwner() client.FieldOwner {
	sum := sha256.Sum256([]byte(e.operator))
	return client.FieldOwner(leaderOwner + "-" + hex.EncodeToString(sum[:8]))
}

// applySlice writes the slice and returns its version, which withdrawAddress needs. The end of ctx
// does not cancel the write: withdrawAddress runs after that end, and a write that was cut off
// would leave its version unknown.
func (e *leaderEndpoint) applySlice(
	ctx context.Context, slice *discoveryv1ac.EndpointSliceApplyConfiguration, opts ...client.ApplyOption,
) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaderCallTimeout)
	defer cancel()

	// The client writes the response into its argument.
	opts = append([]client.ApplyOption{e.fieldOwner()}, opts...)
	if err := e.writer.Apply(ctx, slice, opts...); err != nil {
		return "", fmt.Errorf("leader endpoint of Service %s: %w", e.service, err)
	}
	if slice.ResourceVersion == nil {
		return "", nil
	}
	return *slice.ResourceVersion, nil
}

func (e *leaderEndpoint) addressType() discoveryv1.AddressType {
	if e.address.Is4() {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

// newSlice returns the slice of this operator, with this replica as its endpoint or without one.
func (e *leaderEndpoint) newSlice(withEndpoint bool) *discoveryv1ac.EndpointSliceApplyConfiguration {
	slice := discoveryv1ac.EndpointSlice(e.service.Name+leaderSuffix, e.service.Namespace).
		WithLabels(map[string]string{
			discoveryv1.LabelServiceName: e.service.Name,
			discoveryv1.LabelManagedBy:   leaderOwner,
		}).
		WithAnnotations(map[string]string{leaderOperator: e.operator}).
		WithAddressType(e.addressType())

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
