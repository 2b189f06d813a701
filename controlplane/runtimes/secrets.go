package runtimes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/follow"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

const (
	requestTimeout = 15 * time.Second
	dialTimeout    = 3 * time.Second
	userAgent      = "runtime-watcher-installation"
)

type kubeconfigs struct {
	find    findSecret
	key     string
	opts    KubeconfigOptions
	clients *lru.Cache // of connection, by the name of the Secret
}

// findSecret returns nil if there is none, and the names that it was looked for by.
type findSecret func(ctx context.Context, object client.Object) (secret *corev1.Secret, where string, err error)

type connection struct {
	version string
	client  client.Client
	http    *http.Client
}

// KubeconfigOptions are the optional settings of [NewKubeconfigs]. The zero value is the documented
// default.
type KubeconfigOptions struct {
	// AllowInsecure accepts servers without TLS, and skips the verification of their certificates.
	// The keys of a runtime go over that connection. Default: false.
	AllowInsecure bool
	// AllowProxy accepts the proxy-url of a kubeconfig. Default: false.
	AllowProxy bool
	// AllowExternal accepts programs (exec), auth providers and files in place of credentials. A
	// writer of a Secret can then run programs and read files as the operator. Default: false.
	AllowExternal bool
	// Clients is the number of clients to keep. Each takes about 40 KiB, and as much for an open
	// connection. Default: 64.
	Clients int
	// Scheme has the kinds of typed requests. Default: none, which is enough for the installation.
	Scheme *runtime.Scheme
	// Mapper returns the mapper of a runtime, for other kinds than those of the installation, as
	// apiutil.NewDynamicRESTMapper does. Default: a mapper without discovery.
	Mapper func(config *rest.Config, client *http.Client) (meta.RESTMapper, error)
	// Configure may change the configuration of a client, such as its user agent and its timeouts,
	// but not its content types. Dial must not become nil.
	// Default: 15 s for a request, 3 s to connect, no limit of the rate.
	Configure func(config *rest.Config)
}

func (o KubeconfigOptions) withDefaults() KubeconfigOptions {
	o.Clients = max(o.Clients, 0)
	known := installedKinds()
	return option.WithDefaults(o, KubeconfigOptions{
		Clients:   64,
		Scheme:    runtime.NewScheme(),
		Mapper:    func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return known, nil },
		Configure: func(*rest.Config) {},
	})
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

// NewKubeconfigs returns a function for [SetUp] that connects to runtimes with kubeconfigs. It
// reads them from one key, such as "config", of the Secrets that where returns. The reader should
// not cache all Secrets of the control plane. The reader of mgr.GetAPIReader does not.
//
// The function may be called concurrently. It keeps the clients that were used last, until their
// Secret changes. A missing Secret means [ErrGone]. If object is the Secret itself, or its
// metadata, the Secret is not read again for a client that is kept for that version.
//
// A runtime may answer in JSON only, and its answers are bounded. For one call of an
// installation.Installer the bound is 6 MiB or 131,072 values of JSON. For one other request it is
// half of that.
func NewKubeconfigs(
	secrets client.Reader, key string, where func(object client.Object) client.ObjectKey, opts KubeconfigOptions,
) func(ctx context.Context, object client.Object) (client.Client, error) {
	return newKubeconfigs(key, opts, func(ctx context.Context, object client.Object) (*corev1.Secret, string, error) {
		name := where(object)
		secret, err := serverside.Get(ctx, secrets, name, &corev1.Secret{})
		return secret, name.String(), err
	}).connect
}

// NewKubeconfigsByLabel is like [NewKubeconfigs], for Secrets with a label. More than one for an
// object is an error, and so is an object of another namespace.
func NewKubeconfigsByLabel(
	secrets client.Reader, key string, all KubeconfigSecrets, opts KubeconfigOptions,
) func(ctx context.Context, object client.Object) (client.Client, error) {
	return newKubeconfigs(key, opts, func(ctx context.Context, object client.Object) (*corev1.Secret, string, error) {
		if namespace := object.GetNamespace(); namespace != "" && namespace != all.Namespace {
			return nil, "", fmt.Errorf("%w: those in %s are for objects of that namespace, have one of %s",
				errInvalidKubeconfig, all.Namespace, namespace)
		}
		return all.find(ctx, secrets, object.GetName())
	}).connect
}

// KubeconfigSecrets are the Secrets with kubeconfigs: those in Namespace with Label. The value of
// the label is the name of the object that represents the runtime, in the same namespace. The
// operator needs the right to list and watch Secrets there.
type KubeconfigSecrets struct{ Namespace, Label string }

func (s KubeconfigSecrets) version(secret *metav1.PartialObjectMetadata) string {
	return s.Namespace + "/" + secret.GetLabels()[s.Label] + " " + follow.ResourceVersion(secret)
}

func (s KubeconfigSecrets) find(
	ctx context.Context, secrets client.Reader, object string,
) (*corev1.Secret, string, error) {
	where := fmt.Sprintf("%s with the label %s=%s", s.Namespace, s.Label, object)
	if s.Namespace == "" || s.Label == "" {
		return nil, where, fmt.Errorf("%w: want a namespace and a label to find it by", errInvalidKubeconfig)
	}
	var found corev1.SecretList
	labels := client.MatchingLabels{s.Label: object}
	if err := secrets.List(ctx, &found, client.InNamespace(s.Namespace), labels, client.Limit(2)); err != nil {
		return nil, where, err
	}
	switch len(found.Items) {
	case 0:
		return nil, where, nil
	case 1:
		return &found.Items[0], where, nil
	default:
		return nil, where, fmt.Errorf("%w: want one Secret, have %s and %s",
			errInvalidKubeconfig, found.Items[0].Name, found.Items[1].Name)
	}
}

func newKubeconfigs(key string, opts KubeconfigOptions, find findSecret) *kubeconfigs {
	opts = opts.withDefaults()
	closeIdle := func(_ lru.Key, evicted any) {
		if former, ok := evicted.(connection); ok {
			utilnet.CloseIdleConnectionsFor(former.http.Transport)
		}
	}
	return &kubeconfigs{find: find, key: key, opts: opts, clients: lru.NewWithEvictionFunc(opts.Clients, closeIdle)}
}

func (k *kubeconfigs) connect(ctx context.Context, object client.Object) (client.Client, error) {
	if object.GetUID() != "" {
		if known := k.known(client.ObjectKeyFromObject(object), versionOf(object)); known != nil {
			return known, nil
		}
	}
	secret, where, err := k.find(ctx, object)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig in Secret %s: %w", where, err)
	}
	if secret == nil {
		return nil, fmt.Errorf("%w: there is no Secret %s", ErrGone, where)
	}
	name, version := client.ObjectKeyFromObject(secret), versionOf(secret)
	if known := k.known(name, version); known != nil {
		return known, nil
	}
	made, err := newConnection(secret.Data[k.key], k.opts)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig in Secret %s, key %s: %w", where, k.key, err)
	}
	made.version = version
	k.clients.Remove(name) // To end the connections of a former version.
	k.clients.Add(name, made)
	return made.client, nil
}

// versionOf names one version of one object: no two have the same UID.
func versionOf(object client.Object) string {
	return string(object.GetUID()) + "/" + object.GetResourceVersion()
}

func (k *kubeconfigs) known(name client.ObjectKey, version string) client.Client {
	found, _ := k.clients.Get(name)
	known, _ := found.(connection)
	if known.version != version {
		return nil
	}
	return known.client
}

func newConnection(kubeconfig []byte, opts KubeconfigOptions) (connection, error) {
	config, err := opts.load(kubeconfig)
	if err != nil {
		return connection{}, fmt.Errorf("%w: %w", errInvalidKubeconfig, err)
	}
	config = rest.AddUserAgent(config, userAgent)
	config.Timeout = requestTimeout
	config.QPS = -1 // The concurrent reconciles are the limit.
	config.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	opts.Configure(config)
	remote.Distrust(config)
	connected, err := rest.HTTPClientFor(config)
	if err != nil {
		return connection{}, fmt.Errorf("%w: %w", errInvalidKubeconfig, err)
	}
	connected = remote.WithoutRedirects(connected)
	mapper, err := opts.Mapper(config, connected)
	if err != nil {
		return connection{}, fmt.Errorf("mapper: %w", err)
	}
	made, err := client.New(config, client.Options{HTTPClient: connected, Scheme: opts.Scheme, Mapper: mapper})
	return connection{client: made, http: connected}, err
}

var errInvalidKubeconfig = errors.New("invalid kubeconfig")

// load refuses a kubeconfig that could take keys or files of the operator, or of other runtimes,
// elsewhere. Writers of one kubeconfig must not gain more than that runtime.
func (o KubeconfigOptions) load(kubeconfig []byte) (*rest.Config, error) {
	loaded, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(loaded.AuthInfos)) {
		if err := o.validateUser(loaded.AuthInfos[name]); err != nil {
			return nil, fmt.Errorf("user %.80q: %w", name, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(loaded.Clusters)) {
		if err := o.validateCluster(loaded.Clusters[name]); err != nil {
			return nil, fmt.Errorf("cluster %.80q: %w", name, err)
		}
	}
	return clientcmd.NewDefaultClientConfig(*loaded, &clientcmd.ConfigOverrides{}).ClientConfig()
}

func (o KubeconfigOptions) validateUser(user *clientcmdapi.AuthInfo) error {
	switch {
	case o.AllowExternal:
		return nil
	case user.Exec != nil || user.AuthProvider != nil:
		return errors.New("want credentials inside the kubeconfig, have a program")
	case user.TokenFile != "" || user.ClientCertificate != "" || user.ClientKey != "":
		return errors.New("want credentials inside the kubeconfig, have a file")
	default:
		return nil
	}
}

func (o KubeconfigOptions) validateCluster(cluster *clientcmdapi.Cluster) error {
	switch {
	case cluster.CertificateAuthority != "" && !o.AllowExternal:
		return errors.New("want the CA inside the kubeconfig, have a file")
	case cluster.InsecureSkipTLSVerify && !o.AllowInsecure:
		return errors.New("want a verified certificate, have insecure-skip-tls-verify")
	case !strings.HasPrefix(strings.ToLower(cluster.Server), "https://") && !o.AllowInsecure:
		return errors.New("want a server with https://, have another")
	case cluster.ProxyURL != "" && !o.AllowProxy:
		return errors.New("want no proxy-url, have one")
	default:
		return nil
	}
}

const pullSecretAge = time.Minute

// pullSecret reads about once a minute. It returns nil without a name.
func (r *reconciler) pullSecret(ctx context.Context) ([]byte, error) {
	name := r.opts.PullSecret
	if name == (types.NamespacedName{}) {
		return nil, nil
	}
	if kept, ok := r.pulled.Get(name); ok {
		content, _ := kept.([]byte)
		return content, nil
	}
	secret := &corev1.Secret{}
	if err := r.secrets.Get(ctx, name, secret); err != nil {
		return nil, fmt.Errorf("pull secret %s: %w", name, err)
	}
	content := secret.Data[corev1.DockerConfigJsonKey]
	if len(content) == 0 {
		return nil, fmt.Errorf("pull secret %s: want a %s, have none", name, corev1.DockerConfigJsonKey)
	}
	r.pulled.Set(name, content, pullSecretAge)
	return content, nil
}
