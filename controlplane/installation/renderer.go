package installation

import (
	"crypto/sha256"
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/material"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// renderer makes the objects of one runtime, from the options of its installer. It reads nothing,
// and belongs to the goroutine of one call.
type renderer struct {
	marks

	opts      *Options
	manifests manifests
	image     string
	runtime   *Runtime
	address   string // of the control plane, as the agent writes it
	// ownNamespace means that this package has made, or makes, the namespace. It is set when the
	// namespace was read.
	ownNamespace bool
}

// sumParameters changes with each parameter of the objects, except the options and the keys in the
// Secret.
func (r *renderer) sumParameters() [sha256.Size]byte {
	return sumOf(watch.DocumentOf(r.runtime.Watches), r.address, r.runtime.PullSecret, r.runtime.ProxyCredentials)
}

// finishObject adjusts and marks an object.
func (r *renderer) finishObject(object *unstructured.Unstructured) *unstructured.Unstructured {
	r.opts.Adjust(object)
	r.addMark(object)
	return object
}

// renderNamespace marks the namespace as made by this installer. Only a namespace with these marks
// is removed. The marks come before Adjust, which may remove them.
func (r *renderer) renderNamespace() *unstructured.Unstructured {
	namespace := r.manifests.copyOf(namespaceFile)
	if r.opts.HostNetwork { // Each stricter standard forbids it.
		labels := namespace.GetLabels()
		labels["pod-security.kubernetes.io/enforce"] = "privileged"
		namespace.SetLabels(labels)
	}
	namespace.SetAnnotations(map[string]string{
		r.opts.key(annotationCreatedBy): createdBy, r.names.InstalledBy(): r.owner,
	})
	r.opts.Adjust(namespace)
	return namespace
}

// annotationPullSecret is on the ConfigMap of a runtime with a copy of a pull secret.
const annotationPullSecret = "pull-secret"

// bareManagers is the ConfigMap of the managers without content.
func (r *renderer) bareManagers() *unstructured.Unstructured {
	return named("v1", "ConfigMap", r.opts.Namespace, r.opts.managersName())
}

// renderManagers makes the ConfigMap with one manager per line. Agents read it again, so a new
// manager restarts nothing.
func (r *renderer) renderManagers(restart string) *unstructured.Unstructured {
	var lines strings.Builder
	for _, manager := range r.opts.managersOf(r.runtime.Watches) {
		lines.WriteString(string(manager) + "\n")
	}

	config := r.bareManagers()
	config.SetLabels(r.opts.labels())
	config.Object["data"] = map[string]any{managersKey: lines.String()}
	annotate(config, r.opts.key(annotationRuntime), string(r.runtime.ID))
	if restart != "" {
		annotate(config, r.opts.key(annotationRestart), restart)
	}
	if r.runtime.PullSecret != nil {
		annotate(config, r.opts.key(annotationPullSecret), r.opts.pullSecretName())
	}
	return r.finishObject(config)
}

// bareSecret is the Secret of the agent without content.
func (r *renderer) bareSecret() *unstructured.Unstructured {
	return named("v1", "Secret", r.opts.Namespace, r.opts.secretName())
}

// proxyCredentialsKey is the key of the Secret of the agent with [Runtime.ProxyCredentials].
const proxyCredentialsKey = "proxy-credentials" //nolint:gosec // A name is no secret.

// renderSecret makes the Secret with the keys that the agent reads. The serving pair and the
// credentials are optional.
func (r *renderer) renderSecret() *unstructured.Unstructured {
	data := make(map[string][]byte)
	for _, key := range []string{
		material.CA, material.ClientCertificate, material.ClientKey, material.ServingCertificate, material.ServingKey,
	} {
		value, isSet := r.runtime.Secret[key]
		if isSet {
			data[key] = value
		}
	}

	if r.runtime.ProxyCredentials != nil {
		data[proxyCredentialsKey] = r.runtime.ProxyCredentials
	}
	return r.secretOf(r.opts.secretName(), corev1.SecretTypeTLS, data)
}

func (r *renderer) barePullSecret() *unstructured.Unstructured {
	return named("v1", "Secret", r.opts.Namespace, r.opts.pullSecretName())
}

func (r *renderer) renderPullSecret() *unstructured.Unstructured {
	return r.secretOf(r.opts.pullSecretName(), corev1.SecretTypeDockerConfigJson,
		map[string][]byte{corev1.DockerConfigJsonKey: r.runtime.PullSecret})
}

func (r *renderer) secretOf(name string, kind corev1.SecretType, data map[string][]byte) *unstructured.Unstructured {
	return r.finishObject(&unstructured.Unstructured{Object: contentOf(&corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: r.opts.Namespace, Name: name, Labels: r.opts.labels()},
		Type:       kind,
		Data:       data,
	})})
}

// renderWebhooks makes the configuration with the webhooks of the watches. It fails for invalid
// watches, and for a Secret without a usable CA.
func (r *renderer) renderWebhooks() (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	bundle, err := r.runtime.usableBundle()
	if err != nil {
		return nil, fmt.Errorf("installation: runtime %q: %w", r.runtime.ID, err)
	}

	opts := r.opts.Webhooks
	opts.ExcludedNamespaces = r.opts.excludedNamespaces(r.ownNamespace)
	endpoint := admission.Endpoint{Service: r.opts.service(), CABundle: bundle}
	configuration, err := admission.WebhookConfiguration(r.opts.ConfigurationName, endpoint, r.runtime.Watches, opts)
	if err != nil {
		return nil, fmt.Errorf("installation: runtime %q: %w", r.runtime.ID, err)
	}
	return configuration, nil
}
