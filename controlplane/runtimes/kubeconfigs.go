package runtimes

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/follow"
)

// userAgent is a part of the User-Agent of requests for the installation.
const userAgent = "runtime-watcher-installation"

// KubeconfigOptions are the options of package remote. In this package, the default Mapper contains
// the kinds of the installation and needs no discovery in the runtime.
type KubeconfigOptions = remote.KubeconfigOptions

// KubeconfigSecrets selects the Secrets with kubeconfigs by a label.
type KubeconfigSecrets = remote.KubeconfigSecrets

func withInstalledKinds(opts KubeconfigOptions) KubeconfigOptions {
	if opts.Mapper == nil {
		known := installedKinds()
		opts.Mapper = func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return known, nil }
	}

	configure := opts.Configure
	opts.Configure = func(config *rest.Config) {
		config.UserAgent = rest.DefaultKubernetesUserAgent() + "/" + userAgent
		if configure != nil {
			configure(config)
		}
	}
	return opts
}

// installedKinds spares a client the discovery in the runtime.
func installedKinds() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	add := func(scope meta.RESTScope, version string, kinds ...string) {
		for _, kind := range kinds {
			mapper.Add(schema.FromAPIVersionAndKind(version, kind), scope)
		}
	}

	add(meta.RESTScopeRoot, "v1", "Namespace")
	add(meta.RESTScopeNamespace, "v1", "ConfigMap", "Secret", "Service", "ServiceAccount")
	add(meta.RESTScopeNamespace, "apps/v1", "Deployment")

	// Those that others may have in the namespace of the agent, which then stays.
	add(meta.RESTScopeNamespace, "v1", "Pod", "PersistentVolumeClaim")
	add(meta.RESTScopeNamespace, "apps/v1", "DaemonSet", "StatefulSet")
	add(meta.RESTScopeNamespace, "batch/v1", "CronJob", "Job")
	add(meta.RESTScopeNamespace, "networking.k8s.io/v1", "Ingress")
	add(meta.RESTScopeNamespace, "policy/v1", "PodDisruptionBudget")
	add(meta.RESTScopeNamespace, "networking.k8s.io/v1", "NetworkPolicy")
	add(meta.RESTScopeNamespace, "coordination.k8s.io/v1", "Lease")
	add(meta.RESTScopeNamespace, "discovery.k8s.io/v1", "EndpointSlice")
	add(meta.RESTScopeNamespace, "rbac.authorization.k8s.io/v1", "Role", "RoleBinding")
	add(meta.RESTScopeRoot, "rbac.authorization.k8s.io/v1", "ClusterRole", "ClusterRoleBinding")
	add(meta.RESTScopeRoot, "scheduling.k8s.io/v1", "PriorityClass")
	add(meta.RESTScopeRoot, "admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration")

	return mapper
}

// NewKubeconfigs returns a function for [SetUp] that connects to runtimes with kubeconfigs, as
// remote.NewKubeconfigs does. If the Secret is missing, the error wraps [ErrGone].
func NewKubeconfigs(
	secrets client.Reader, key string, where func(object client.Object) client.ObjectKey, opts KubeconfigOptions,
) func(ctx context.Context, object client.Object) (client.Client, error) {
	return remote.NewKubeconfigs(secrets, key, where, withInstalledKinds(opts))
}

// NewKubeconfigsByLabel is like [NewKubeconfigs], for Secrets with a label.
func NewKubeconfigsByLabel(
	secrets client.Reader, key string, all KubeconfigSecrets, opts KubeconfigOptions,
) func(ctx context.Context, object client.Object) (client.Client, error) {
	return remote.NewKubeconfigsByLabel(secrets, key, all, withInstalledKinds(opts))
}

// versionIn names the object of the kubeconfig in a Secret, and the version of the Secret.
func versionIn(where KubeconfigSecrets) func(secret *metav1.PartialObjectMetadata) string {
	return func(secret *metav1.PartialObjectMetadata) string {
		return where.Namespace + "/" + secret.GetLabels()[where.Label] + " " + follow.ResourceVersion(secret)
	}
}
