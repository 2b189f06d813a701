package installation

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"regexp"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
)

// What the objects in a runtime are called.
const (
	// DefaultNamespace is where the agent is installed.
	DefaultNamespace = "runtime-watcher"
	// Name is that of Deployment, Service and ServiceAccount.
	Name = "runtime-watcher"
	// SecretName is that of the Secret that the agent mounts.
	SecretName = "runtime-watcher-tls"
	// CanaryName is that of the Lease, and of what lets the agent write it.
	CanaryName = "runtime-watcher-canary"
	// DefaultConfigurationName is that of the ValidatingWebhookConfiguration.
	DefaultConfigurationName = "runtime-watcher"
	// FieldOwner owns what this package applies.
	FieldOwner = "runtime-watcher-installation"
)

// defaultReplicas is one to answer while the other is away.
const defaultReplicas = 2

// Options are what is optional of an [Installer]. The zero value is ready to use.
type Options struct {
	// Namespace of everything in the runtime that has one. One that somebody else has made is neither changed nor removed. Default:
	// [DefaultNamespace].
	Namespace string
	// ConfigurationName is that of the ValidatingWebhookConfiguration, and must be unique in the runtime. Default:
	// [DefaultConfigurationName].
	ConfigurationName string
	// Replicas of the agent. Default: 2.
	Replicas int32
	// Canary lets the agent write a Lease, to find out whether the API server still calls it. Default: off, and the agent may do nothing
	// in the runtime.
	Canary bool
	// Settings are environment variables of the agent, beside those that the manifests set. Default: none. MANAGERS is by default the
	// managers of the watches: a new one restarts the agents, which ask it for a look at the whole runtime thereby.
	Settings map[string]string
	// Webhooks are the options of the webhook configuration. Its Canary is set from Canary above.
	Webhooks admission.ConfigurationOptions
	// Adjust may change each object before it is applied, to add tolerations, pull secrets or labels. It must neither rename an object nor
	// block, and is called concurrently if Install is. Default: none.
	Adjust func(object *unstructured.Unstructured)
	// Logger gets a line when an object had to be replaced. Default: discarded.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	o.Namespace = cmp.Or(o.Namespace, DefaultNamespace)
	o.ConfigurationName = cmp.Or(o.ConfigurationName, DefaultConfigurationName)
	o.Replicas = cmp.Or(o.Replicas, defaultReplicas)

	o.Webhooks.Canary = types.NamespacedName{}
	if o.Canary {
		o.Webhooks.Canary = o.lease()
	}

	if o.Adjust == nil {
		o.Adjust = func(*unstructured.Unstructured) {}
	}

	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}

	return o
}

func (o Options) lease() types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: CanaryName}
}

func (o Options) validate() error {
	var wrong []error

	if problems := validation.IsDNS1123Label(o.Namespace); problems != nil {
		wrong = append(wrong, fmt.Errorf("Namespace: %.80q: %s", o.Namespace, problems[0]))
	}

	if problems := validation.IsDNS1123Subdomain(o.ConfigurationName); problems != nil {
		wrong = append(wrong, fmt.Errorf("ConfigurationName: %.80q: %s", o.ConfigurationName, problems[0]))
	}

	if o.Replicas < 1 {
		wrong = append(wrong, fmt.Errorf("Replicas: want at least 1, have %d", o.Replicas))
	}

	name, reserved := regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`), reservedSettings()

	for setting := range o.Settings {
		if !name.MatchString(setting) || reserved[setting] {
			wrong = append(wrong, fmt.Errorf("Settings: want names of the agent's settings that the manifests do not set, have %.80q", setting))
		}
	}

	return errors.Join(wrong...)
}
