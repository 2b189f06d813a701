// Package lifecyclemanager puts the parts of this project into the operator of
// kyma-project/lifecycle-manager, in the steps of docs/platforms/migration.md. Names come from its
// commit c5b83f1. No other package of this module depends on a listener or on metrics.
package lifecyclemanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/keysource"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/connect"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

const (
	operator   = "lifecycle-manager"
	plane      = "kcp-system"
	there      = "kyma-system"
	runtimeID  = "kyma-project.io/runtime-id"
	agentName  = "watcher-agent" // No name of lifecycle-manager, before or after its ADR 009.
	gatewaySAN = "spiffe://cluster.local/ns/istio-system/sa/istio-ingressgateway-service-account"
)

var (
	ours = names.Names{}.WithDefaults().Finalizer // of a Kyma with our agent
	kyma = schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
)

// Options are the settings of [SetUp].
type Options struct {
	// Step is the step of docs/platforms/migration.md that a release of the operator takes, 2 to 8,
	// including all earlier steps. To go back, set a lower step; below step 4, set Leave first.
	// Required.
	Step int
	// DryRun accepts events that SAN pinning refuses and events that do not come from the gateway.
	// For such events, a line is logged and the metrics show the reason. Default: false.
	DryRun bool
	// GatewayNames are the SANs of the ingress gateway in the mesh. Default: the SAN of Istio's
	// ingress gateway in the trust domain cluster.local.
	GatewayNames []string
	// Address is <host>:<port> of the ingress gateway. Required from step 4 on.
	Address string
	// Image is the image of the agent. Required from step 5 on.
	Image string
	// WatcherKind is the kind of the custom resources: "Watcher", or "RuntimeWatcher" after the
	// renaming of lifecycle-manager's ADR 009. Default: "Watcher".
	WatcherKind string
	// CA and GatewaySecret are the Secrets with the CA and with the certificate of the ingress
	// gateway. After the renaming they are klm-runtime-watcher-ca and klm-runtime-watcher-server.
	// Default: klm-watcher and klm-istio-gateway in istio-system.
	CA, GatewaySecret types.NamespacedName
	// Leave reports whether the agent of a Kyma is removed or not installed. It is called
	// concurrently and must not change the object. Default: no agent is removed.
	Leave func(kyma client.Object) bool
	// The following fields are the options of the parts. SetUp sets Addr, Senders, Verifier and
	// Runtimes of Listener. It also sets the hooks and the fleet of Listener, unless they are set,
	// and the names of lifecycle-manager in the other options. Name and ConfigurationName of Agent
	// default to "watcher-agent". SetUp adds the objects of former agents, with their names before
	// and after the renaming, to Replaces.
	Listener     controllerruntime.ListenerConfig
	Source       controllerruntime.SourceOptions
	Keys         keys.FilesOptions
	Certificates certificates.Options
	Agent        installation.Options
	Runtimes     runtimes.Options
	// WarmUp is the argument warmUp of [certificates.FromFleet]. Default: 90 s.
	WarmUp time.Duration
}

func (o Options) withDefaults() Options {
	const istio = "istio-system"
	if o.CA == (types.NamespacedName{}) {
		o.CA = types.NamespacedName{Namespace: istio, Name: "klm-watcher"}
	}
	if o.GatewaySecret == (types.NamespacedName{}) {
		o.GatewaySecret = types.NamespacedName{Namespace: istio, Name: "klm-istio-gateway"}
	}

	o.Agent.Name = cmp.Or(o.Agent.Name, agentName)
	o.Agent.ConfigurationName = cmp.Or(o.Agent.ConfigurationName, agentName)
	return o
}

// names are the names of lifecycle-manager.
func (o Options) names() names.Names { return names.Names{Kind: o.WatcherKind} }

func (o Options) validate() error {
	parsed, err := connect.ParseAddress(o.Address)
	hasAddress := err == nil && parsed.Port() != ""

	switch {
	case o.Step < 2 || o.Step > 8:
		return fmt.Errorf("lifecyclemanager: Step is %d, want 2 to 8", o.Step)
	case o.Step >= 4 && !hasAddress:
		return fmt.Errorf("lifecyclemanager: Address is %q, want <host>:<port> from step 4 on", o.Address)
	case o.Step >= 5 && o.Image == "":
		return errors.New("lifecyclemanager: Image is empty, want that of the agent from step 5 on")
	}

	if err := o.names().Validate(); err != nil {
		return fmt.Errorf("lifecyclemanager: WatcherKind: %w", err)
	}
	return option.NotNegative("lifecyclemanager: WarmUp", o.WarmUp)
}

// SetUp adds the parts of a step to mgr. addr is the address of the listener, such as ":8082". Pass
// the source to WatchesRawSource in the controller of Kymas, in each step. SetUp registers the
// metrics of the listener, with the former names as aliases, and of the fleet in the registry of
// controller-runtime, so a process can call SetUp only once. From step 4 on, register the types of
// cert-manager in the scheme of mgr. SetUp queries the API server for the kinds that it needs.
func SetUp(mgr ctrl.Manager, addr string, opts Options) (*controllerruntime.Source[ctrl.Request], error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}

	opts = opts.withDefaults()
	watched, err := fleet.New(fleet.Options{Logger: controllerruntime.Logger(mgr.GetLogger())})
	if err != nil {
		return nil, err
	}

	opts.Listener.Fleet = cmp.Or(opts.Listener.Fleet, watched)
	received, err := listen(mgr, addr, opts)
	if err != nil {
		return nil, err
	}

	if opts.Step >= 3 {
		if err := watcher.SetUp(mgr, watcher.Options{Names: opts.names()}); err != nil {
			return nil, err
		}
	}
	if opts.Step >= 4 {
		if err := install(mgr, opts); err != nil {
			return nil, err
		}
	}
	return received, nil
}

// newKymas returns the runtimes. A fleet expects those with our agent, from step 5 on: former
// agents send no heartbeats.
func newKymas(objects cache.Cache, step int) (*controllerruntime.Runtimes, error) {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kyma)
	return controllerruntime.NewRuntimes(objects, object, controllerruntime.ByLabel(runtimeID),
		controllerruntime.RuntimesOptions{Expected: func(object client.Object, _ core.Manager) bool {
			return step >= 5 && controllerutil.ContainsFinalizer(object, ours)
		}})
}

// listen is step 2.
func listen(mgr ctrl.Manager, addr string, opts Options) (*controllerruntime.Source[ctrl.Request], error) {
	named := watchermetrics.Options{Managers: []core.Manager{operator}, Aliases: true}
	measured, err := watchermetrics.NewListener(metrics.Registry, named)
	material, keysErr := keysource.NewSecret(mgr.GetAPIReader(), opts.GatewaySecret, opts.Keys)
	kymas, kymasErr := newKymas(mgr.GetCache(), opts.Step)
	if err := errors.Join(err, keysErr, kymasErr); err != nil {
		return nil, err
	}

	if opts.Listener.Options.Hooks.Answered == nil {
		opts.Listener.Options.Hooks = measured.Hooks
	}

	verify := listener.SANPinning(kymas)
	from := listener.PeerOptions{GatewayNames: opts.GatewayNames}
	if len(from.GatewayNames) == 0 {
		from.GatewayNames = []string{gatewaySAN}
	}
	if opts.DryRun {
		from.ObserveOnly = controllerruntime.Logger(mgr.GetLogger())
		verify = listener.ObserveOnly(verify, from.ObserveOnly)
	}

	opts.Listener.Addr = addr
	opts.Listener.Senders = controllerruntime.BehindGateway(listener.FromXFCC(
		listener.ProxyAddresses(netip.MustParsePrefix("127.0.0.6/32")), keys.Roots(material), from))
	opts.Listener.Verifier = verify
	opts.Listener.Runtimes = kymas

	events, err := controllerruntime.AddListener(mgr, opts.Listener)
	if err != nil {
		return nil, err
	}

	received, err := controllerruntime.SourceFor(
		events, operator, controllerruntime.EnqueueByRuntime(kymas), opts.Source)
	return received, errors.Join(err, mgr.Add(material),
		watchermetrics.RegisterFleet(metrics.Registry, opts.Listener.Fleet, named))
}

// install is step 4, with the certificates alone, and the steps after it.
func install(mgr ctrl.Manager, opts Options) error {
	direct, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme()})
	if err != nil {
		return err
	}

	if opts.Step < 8 {
		opts.Certificates.ImportCA = opts.CA
		opts.Certificates.AdditionalCAs = append(slices.Clone(opts.Certificates.AdditionalCAs), opts.CA)
	}

	opts.Certificates.Names = opts.names()
	opts.Certificates.ListenerSecret = opts.GatewaySecret
	opts.Certificates.Service = opts.Agent.Name
	opts.Certificates.RuntimeNamespace = there

	watched := opts.Listener.Fleet
	address, err := connect.ParseAddress(opts.Address)
	if err != nil {
		return fmt.Errorf("lifecyclemanager: Address: %w", err)
	}

	set, err := certificates.New(direct, certificates.Parts{
		Name:        types.NamespacedName{Namespace: plane, Name: "watcher"},
		DNSNames:    []string{address.Hostname()},
		Unconfirmed: certificates.FromFleet(watched, opts.WarmUp),
	}, opts.Certificates)
	if err != nil {
		return err
	}
	if opts.Step == 4 {
		return mgr.Add(runtimes.KeepCertificates(set))
	}

	installer, err := installation.New(installation.Parts{Image: opts.Image, ControlPlane: opts.Address}, opts.agent())
	if err != nil {
		return err
	}

	secrets := runtimes.KubeconfigSecrets{Namespace: plane, Label: "operator.kyma-project.io/kyma-name"}
	opts.Runtimes.Fleet = watched
	opts.Runtimes.Kubeconfigs = secrets

	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kyma)
	kubeconfigs := runtimes.NewKubeconfigsByLabel(mgr.GetAPIReader(), "config", secrets, runtimes.KubeconfigOptions{})

	return runtimes.SetUp(mgr, runtimes.Parts{
		Object: object, Identify: opts.identify, Connect: kubeconfigs, Certificates: set, Installer: installer,
	}, opts.Runtimes)
}

// agent returns the options of the installer. All modules share the namespace: the agent may come
// first and create it, but must not leave it unwatched, or remove it.
func (o Options) agent() installation.Options {
	agent := o.Agent
	adjust := o.Agent.Adjust
	agent.Adjust = func(object *unstructured.Unstructured) {
		if object.GetKind() == "Namespace" {
			object.SetAnnotations(nil)
		}
		if adjust != nil {
			adjust(object)
		}
	}

	agent.Namespace = there
	agent.Names = o.names()

	if o.Step < 6 {
		return agent
	}

	// The objects of one agent, in their order, must not be mixed with the objects of another
	// agent.
	agent.Replaces = slices.Concat(
		installation.SKRWebhook(there), installation.RenamedSKRWebhook(there), agent.Replaces)
	if agent.MayReplace == nil {
		agent.MayReplace = func(id core.RuntimeID) bool {
			return o.Listener.Fleet.Get(id, operator).State == fleet.Fresh
		}
	}

	return agent
}

func (o Options) identify(_ context.Context, object client.Object) (runtimes.Identity, error) {
	return runtimes.Identity{
		ID: core.RuntimeID(object.GetLabels()[runtimeID]), Remove: o.Leave != nil && o.Leave(object),
		Domain: object.GetAnnotations()[controllerruntime.DomainAnnotation],
	}, nil
}
