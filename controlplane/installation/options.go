package installation

import (
	"cmp"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// verifyAfter bounds the time until changes by others are corrected.
const verifyAfter = time.Hour

// maxName leaves room for suffixes and the names of pods.
const maxName = 40

// Options are the optional settings of an [Installer]. The zero value is the documented default.
type Options struct {
	// Namespace is the namespace of the agent. An existing namespace is neither changed nor
	// removed, and objects in it are watched. The serving certificate must be valid for the Service
	// in that namespace. After a change, the objects in the former namespace stay. Default: [Name].
	Namespace string
	// Name is the name of the Deployment, the Service and the ServiceAccount. All other names in
	// the namespace begin with it. The serving certificate must be valid for the Service. After a
	// change, the objects with the former name stay. Default: [Name].
	Name string
	// ConfigurationName is the name of the ValidatingWebhookConfiguration. It must be unique in
	// the runtime. Webhooks that other programs add to it are removed. Default: "runtime-watcher".
	ConfigurationName string
	// Names are the names of the operator: labels, annotations and names of webhooks in the
	// runtimes, and the annotation of owners that agents read. Default: the defaults of
	// [names.Names].
	Names names.Names
	// Owner identifies this installer in the runtimes, in the annotation of
	// [names.Names.InstalledBy] on each object. Install changes nothing in a runtime with objects
	// of another owner, and returns an error with the reason owned. Owner must differ between
	// operators and must not change. Default: the address of the control plane.
	Owner string
	// FormerOwners are owners from which this installer takes over runtimes. Their installers must
	// no longer be running. The owner of the manifests is "manifests", and the owner of the chart
	// is "helm". Default: none.
	FormerOwners []string
	// Adopt lists objects, each as <Kind>/<name>, that Install takes over although they have no
	// owner annotation, such as "Deployment/runtime-watcher". Install replaces an object that
	// cannot be changed. By default, Install rejects a runtime with such an object, and the error
	// names the object.
	Adopt []string
	// Replicas is the number of agents. Default: 2, or 1 with Informer, because each replica would
	// send each event.
	Replicas int32
	// PriorityClassName is the priority class of the agents. Default: none.
	PriorityClassName string
	// ImagePullSecrets are names of Secrets in the namespace of the agent. Default: none.
	ImagePullSecrets []string
	// Resources are the requests and limits of each agent. Default: the values in config/agent,
	// with a memory limit of 128Mi if Informer is set.
	Resources *corev1.ResourceRequirements
	// WebhookPort is the port of the agents to which the API server connects. An API server that
	// reaches only some ports of pods needs another port, such as 10250 in a private cluster of
	// GKE. A new port restarts the agents. Default: 8443.
	WebhookPort int32
	// MetricsPort is the port of the agents' metrics. A new port restarts the agents. Default:
	// 2112.
	MetricsPort int32
	// HostNetwork gives the agents the network of their nodes, for an API server that cannot reach
	// pods. Both ports must be free on each node, so neither may be port 10250 of the kubelet, and
	// each replica needs a node. Network policies then do not apply, and a namespace that this
	// package makes allows privileged pods. Default: the network of pods.
	HostNetwork bool
	// Informer makes the agents watch the API server of the runtime, so that they observe each
	// change after the commit. There is no webhook configuration. The agents get the rights to list
	// and watch exactly the watched resources. The agents ignore the conditions of a watch, so more
	// changes count. A new watch restarts the agents. Default: a webhook, which is called before
	// each commit.
	Informer bool
	// NoCanary turns the canary off: the agent then has no rights in the runtime and cannot prove
	// that the API server calls it. By default, the agent writes a Lease as proof. With Informer,
	// the agent has no canary.
	NoCanary bool
	// Settings are environment variables of the agent, in addition to the variables in the
	// manifests. A new value restarts the agents. With TRANSPORT=nats, the address of the control
	// plane is the address of a NATS server, CONTROL_PLANE_CONTRACT is v3, and each client
	// certificate has a DNS name. MANAGERS, a comma-separated list, is not a variable of the
	// agents: its managers join the managers of the watches, in a file that the agents read again.
	// Default: none.
	Settings map[string]string
	// Webhooks are the options of the webhook configuration. Its Canary, WebhookDomain and
	// OwnerAnnotation must be empty, because NoCanary and Names decide them. Its Labels are added
	// to the default labels. By default ExcludedNamespaces are kube-system and, if this package
	// created it, the namespace of the agent.
	Webhooks admission.ConfigurationOptions
	// Replaces are objects of a former agent, such as the objects that [SKRWebhook] returns.
	// Install removes them in this order after the webhook configuration is applied, so that the
	// API server calls an agent at every moment. With Informer it removes them when the agents
	// watch. If no object with the kind of the first or of the last object exists, all objects
	// count as removed. An object with the mark of an installer stays. A client of
	// runtimes.NewKubeconfigs supports only the kinds of SKRWebhook and of the manifests. Default:
	// none.
	Replaces []*unstructured.Unstructured
	// MayReplace reports whether the objects of Replaces may be removed from a runtime, for example
	// because the runtime is fresh. Until then, the status has the reason FormerNeeded. MayReplace
	// must not block and may be called concurrently. Default: always.
	MayReplace func(id core.RuntimeID) bool
	// Adjust may change each object before it is applied, to add tolerations, pull secrets or
	// labels. Adjust must not rename an object and must not block. It may be called concurrently.
	// If its result changes, the new result is applied after 1 h. Default: none.
	Adjust func(object *unstructured.Unstructured)
	// Now is the clock. Default: [time.Now].
	Now func() time.Time
	// Logger gets a line when an object had to be replaced, and when agents restart because another
	// program has changed the webhooks. Default: ctrl.Log.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	o.Names = o.Names.WithDefaults()
	o.Settings = maps.Clone(o.Settings) // The caller may change its own.
	o.Namespace = cmp.Or(o.Namespace, Name)
	o.Name = cmp.Or(o.Name, Name)
	o.ConfigurationName = cmp.Or(o.ConfigurationName, Name)
	if o.Informer {
		o.NoCanary = true
		o.Replicas = cmp.Or(o.Replicas, 1)
	}

	o.Webhooks.Canary = o.lease()
	o.Webhooks.WebhookDomain = o.Names.WebhookDomain
	o.Webhooks.OwnerAnnotation = o.Names.OwnerAnnotation
	labels := o.labels()
	maps.Copy(labels, o.Webhooks.Labels)
	o.Webhooks.Labels = labels

	return option.WithDefaults(o, Options{
		Replicas:    2,
		WebhookPort: 8443,
		MetricsPort: 2112,
		MayReplace:  func(core.RuntimeID) bool { return true },
		Adjust:      func(*unstructured.Unstructured) {},
		Now:         time.Now,
		Logger:      slog.New(logr.ToSlogHandler(log.Log)),
	})
}

// validateWebhooks refuses the fields that this package sets, because a value would be lost.
func validateWebhooks(w admission.ConfigurationOptions) error {
	return errors.Join(
		option.Unless(w.Canary == types.NamespacedName{}, "Webhooks.Canary is set: want NoCanary instead"),
		option.Unless(w.WebhookDomain == "", "Webhooks.WebhookDomain is set: want Names.WebhookDomain instead"),
		option.Unless(w.OwnerAnnotation == "", "Webhooks.OwnerAnnotation is set: want Names.OwnerAnnotation instead"),
		option.NotNegative("Webhooks.Timeout", w.Timeout),
	)
}

// validate needs the defaults.
func (o Options) validate() error {
	return errors.Join(o.validateNames(), o.validateObjects(), o.settings().validate(settingsInManifests()))
}

func (o Options) validateNames() error {
	wrongNames := o.Names.Validate()
	namespace := validation.IsDNS1123Label(o.Namespace)
	configuration := validation.IsDNS1123Subdomain(o.ConfigurationName)
	isName := validation.IsDNS1035Label(o.Name) == nil && len(o.Name) <= maxName
	usesFreePorts := o.WebhookPort != kubeletPort && o.MetricsPort != kubeletPort

	return errors.Join(
		option.Unless(wrongNames == nil, "Names: %w", wrongNames),
		option.Unless(namespace == nil, "Namespace: %s, have %.80q", strings.Join(namespace, ", "), o.Namespace),
		option.Unless(configuration == nil, "ConfigurationName: %s, have %.80q",
			strings.Join(configuration, ", "), o.ConfigurationName),
		option.Unless(isName, "Name: want a name of a Service with at most %d characters, have %.80q", maxName, o.Name),
		option.Unless(o.Replicas >= 1, "Replicas: want at least 1, have %d", o.Replicas),
		validatePort("WebhookPort", o.WebhookPort),
		validatePort("MetricsPort", o.MetricsPort),
		option.Unless(o.WebhookPort != o.MetricsPort,
			"WebhookPort and MetricsPort: want two ports, have %d", o.WebhookPort),
		option.Unless(!o.HostNetwork || usesFreePorts,
			"HostNetwork: want ports that are free on each node, have %d of the kubelet", kubeletPort),
	)
}

// kubeletPort is taken on each node.
const kubeletPort = 10250

// validatePort refuses ports that only a superuser may open, because no agent runs as a superuser.
func validatePort(name string, port int32) error {
	const least, most = 1024, 65535
	return option.Unless(port >= least && port <= most, "%s: want %d to %d, have %d", name, least, most, port)
}

// validateObjects checks the objects that an installation takes over or removes.
func (o Options) validateObjects() error {
	var problems []error
	for n, object := range o.Adopt {
		kind, name, _ := strings.Cut(object, "/")
		isComplete := kind != "" && name != "" && !strings.Contains(name, "/")
		problems = append(problems, option.Unless(isComplete,
			"option Adopt[%d]: want <Kind>/<name>, have %.80q", n, object))
	}

	for n, object := range o.Replaces {
		isComplete := object != nil && object.GetKind() != "" && object.GetName() != ""
		problems = append(problems, option.Unless(isComplete,
			"option Replaces[%d]: want a kind and a name", n))
	}
	return errors.Join(problems...)
}

func (o Options) settings() settings { return o.Settings }

// managersOf returns the managers that agents with these watches send to, sorted.
func (o Options) managersOf(watches []watch.Watch) []core.Manager {
	managers := o.settings().managers()
	for n := range watches {
		managers = append(managers, watches[n].Manager)
	}

	slices.Sort(managers)
	return slices.Compact(managers)
}

// key returns the label or annotation of a word, in the names of the operator.
func (o Options) key(word string) string { return o.Names.Key(word) }

func (o Options) labels() map[string]string {
	return map[string]string{"app.kubernetes.io/name": o.Name}
}

// lease is the object of the canary. Without a canary, it is the zero value.
func (o Options) lease() types.NamespacedName {
	if o.NoCanary {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name + "-canary"}
}

// service is called by the API server, the zero value if the agents watch.
func (o Options) service() types.NamespacedName {
	if o.Informer {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
}

// host is the name in the serving certificate of the agents.
func (o Options) host() string { return o.Name + "." + o.Namespace + ".svc" }

func (o Options) secretName() string { return o.Name + "-tls" }

func (o Options) pullSecretName() string { return o.Name + "-pull" }

func (o Options) managersName() string { return o.Name + "-" + managersKey }

// bareConfiguration is the webhook configuration without content.
func (o Options) bareConfiguration() *unstructured.Unstructured {
	return named("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "", o.ConfigurationName)
}

// excludedNamespaces are those in which nothing is watched. A namespace that this package has not
// made may hold objects to watch, so it is not excluded.
func (o Options) excludedNamespaces(ownNamespace bool) []string {
	if o.Webhooks.ExcludedNamespaces != nil {
		return o.Webhooks.ExcludedNamespaces
	}
	if ownNamespace {
		return []string{metav1.NamespaceSystem, o.Namespace}
	}
	return []string{metav1.NamespaceSystem}
}
