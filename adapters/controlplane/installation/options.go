package installation

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/internal/material"
)

// Names of the objects in a runtime.
const (
	// DefaultNamespace is the default namespace of the agent.
	DefaultNamespace = material.DefaultNamespace
	// Name is the name of Deployment, Service and ServiceAccount.
	Name = material.DefaultService

	// fieldOwner owns the fields that this package applies.
	fieldOwner = "runtime-watcher-installation"

	defaultConfigurationName = "runtime-watcher"

	secretName = "runtime-watcher-tls"
	canaryName = "runtime-watcher-canary"
)

const (
	defaultReplicas = 2
	maxPort         = 65535
)

// Source is how the agents of a runtime see changes.
type Source string

// The sources.
const (
	// SourceAdmission is a webhook, which is called before each commit.
	SourceAdmission Source = "admission"
	// SourceInformer is a watch of the API server, after the commit. The agents get the rights to
	// list and watch exactly the watched resources, and there is no webhook configuration.
	// Conditions of a watch are left out: more changes count. One replica is the default, as each
	// would send each event.
	SourceInformer Source = "informer"
)

// Options are the optional settings of an [Installer]. The zero value is the documented default.
type Options struct {
	// Namespace is the namespace of the agent. An existing namespace is neither changed nor
	// removed, and objects in it are watched. The serving certificate must be valid for the Service
	// there. Default: [DefaultNamespace].
	Namespace string
	// ConfigurationName is the name of the ValidatingWebhookConfiguration. It must be unique in the
	// runtime. Default: "runtime-watcher".
	ConfigurationName string
	// Replicas is the number of agents. Default: 2, and 1 with [SourceInformer].
	Replicas int32
	// Source is how the agents see changes. Default: [SourceAdmission].
	Source Source
	// NoCanary turns the canary off: the agent then has no rights in the runtime, and cannot prove
	// that the API server calls it. By default the agent writes a Lease to find out. With
	// [SourceInformer] there is no canary.
	NoCanary bool
	// Settings are environment variables of the agent, beside those of the manifests. The managers
	// in MANAGERS, separated by commas, are added to those of the watches. A new value restarts the
	// agents. Default: none.
	Settings map[string]string
	// Webhooks are the options of the webhook configuration. Its Canary is set by this package. By
	// default ExcludedNamespaces are kube-system and, if this package has made it, the namespace of
	// the agent.
	Webhooks admission.ConfigurationOptions
	// Adjust may change each object before it is applied, to add tolerations, pull secrets or
	// labels. It must not rename an object and must not block. Concurrent calls of Install call it
	// concurrently. Default: none.
	Adjust func(object *unstructured.Unstructured)
	// Logger gets a line when an object had to be replaced. Default: discarded.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	o.Namespace = cmp.Or(o.Namespace, DefaultNamespace)
	o.ConfigurationName = cmp.Or(o.ConfigurationName, defaultConfigurationName)
	o.Source = cmp.Or(o.Source, SourceAdmission)
	if o.Source == SourceInformer {
		o.NoCanary = true
		o.Replicas = cmp.Or(o.Replicas, 1)
	}
	o.Replicas = cmp.Or(o.Replicas, defaultReplicas)
	o.Webhooks.Canary = o.lease()
	if o.Adjust == nil {
		o.Adjust = func(*unstructured.Unstructured) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// lease returns the Lease of the canary, empty without canary.
func (o Options) lease() types.NamespacedName {
	if o.NoCanary {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: o.Namespace, Name: canaryName}
}

func (o Options) validate() error {
	var problems []error
	if wrong := validation.IsDNS1123Label(o.Namespace); wrong != nil {
		problems = append(problems, fmt.Errorf("Namespace: %s, have %.80q", wrong[0], o.Namespace))
	}
	if wrong := validation.IsDNS1123Subdomain(o.ConfigurationName); wrong != nil {
		problems = append(problems, fmt.Errorf("ConfigurationName: %s, have %.80q", wrong[0], o.ConfigurationName))
	}
	if o.Source != SourceAdmission && o.Source != SourceInformer {
		problems = append(problems,
			fmt.Errorf("Source: want %q or %q, have %.40q", SourceAdmission, SourceInformer, o.Source))
	}
	if o.Replicas < 1 {
		problems = append(problems, fmt.Errorf("Replicas: want at least 1, have %d", o.Replicas))
	}
	return errors.Join(append(problems, o.validateSettings()...)...)
}

func (o Options) validateSettings() (problems []error) {
	name, reserved := regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`), reservedSettings()
	for _, setting := range slices.Sorted(maps.Keys(o.Settings)) {
		if !name.MatchString(setting) || reserved[setting] {
			problems = append(problems,
				fmt.Errorf("Settings: want settings of the agent that the manifests do not set, have %.80q", setting))
		}
	}
	return problems
}

// parsePort returns the port of <host>:<port>.
func parsePort(address string) (int32, error) {
	host, text, err := net.SplitHostPort(address)
	port, portErr := strconv.ParseInt(text, 10, 32)
	if err != nil || portErr != nil || host == "" || port < 1 || port > maxPort {
		return 0, fmt.Errorf("address of the control plane: want <host>:<port>, have %.200q", address)
	}
	return int32(port), nil
}
