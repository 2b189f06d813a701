package remote

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// ErrGone means that a cluster cannot be reached, because it does not exist yet or no longer
// exists.
var ErrGone = errors.New("runtime is gone, or not there yet")

// ErrInvalidKubeconfig means that a Secret contains no kubeconfig, or a kubeconfig that is refused.
var ErrInvalidKubeconfig = errors.New("invalid kubeconfig")

// defaultUserAgent is a part of the User-Agent of each request.
const defaultUserAgent = "runtime-watcher"

// kubeconfigs makes clients, and keeps those that were used last. It never changes but for these.
type kubeconfigs struct {
	find    findSecret
	key     string
	opts    KubeconfigOptions
	clients *lru.Cache // of connection, by the name of the Secret
	invalid error      // of opts, which connect returns
}

// findSecret returns nil if there is none, and the names that it was looked for by.
type findSecret func(ctx context.Context, object client.Object) (secret *corev1.Secret, where string, err error)

type connection struct {
	version string            // of the Secret
	sum     [sha256.Size]byte // of the kubeconfig
	client  client.Client
	http    *http.Client
}

// KubeconfigOptions are the optional settings of [NewKubeconfigs]. The zero value is the documented
// default.
type KubeconfigOptions struct {
	// AllowInsecure accepts servers without TLS and skips the verification of their certificates.
	// The keys of a cluster are sent over that connection. Default: false.
	AllowInsecure bool
	// AllowProxy accepts the proxy-url of a kubeconfig. Default: false.
	AllowProxy bool
	// AllowExternal accepts programs (exec), auth providers and files in place of credentials.
	// Anyone with write access to a Secret can then run programs and read files as the operator.
	// Default: false.
	AllowExternal bool
	// Clients is the number of clients to keep. Each takes about 40 KiB, and another 40 KiB for an
	// open connection. Default: 64.
	Clients int
	// Scheme contains the kinds of typed requests. Default: none, which is enough for unstructured
	// objects and for metadata.
	Scheme *runtime.Scheme
	// Mapper returns the mapper of a cluster. The mapper of the controller manager is enough for
	// kinds that the control plane also has. It needs no request and no memory for answers of a
	// cluster. Default: apiutil.NewDynamicRESTMapper, which asks the cluster.
	Mapper func(config *rest.Config, client *http.Client) (meta.RESTMapper, error)
	// Configure may change the configuration of a client, such as its user agent and its timeouts,
	// but not its content types. Dial must not become nil.
	// Default: 15 s for a request, 3 s to connect, no rate limit.
	Configure func(config *rest.Config)
}

func (o KubeconfigOptions) withDefaults() KubeconfigOptions {
	return option.WithDefaults(o, KubeconfigOptions{
		Clients:   64,
		Scheme:    runtime.NewScheme(),
		Mapper:    apiutil.NewDynamicRESTMapper,
		Configure: func(*rest.Config) {},
	})
}

// NewKubeconfigs returns a function that connects to clusters with kubeconfigs. It reads each
// kubeconfig from the given key, such as "config", of the Secret that where returns. The reader
// should not cache all Secrets of the control plane: mgr.GetAPIReader returns a suitable reader.
//
// The function may be called concurrently. It keeps the most recently used clients. If the
// kubeconfig in a Secret changes, for example because of a new token, the next call makes a new
// client. If the Secret is missing, the error wraps [ErrGone]. If its content is invalid, the error
// wraps [ErrInvalidKubeconfig]. If object is the Secret itself, or its metadata, the Secret is not
// read again while a client is kept for that version.
//
// The bounds of a client, for each possible answer of the API server:
//
//   - Answers are JSON without compression and without redirects. Headers have at most 64 KiB, and
//     the texts of errors at most 4,000 bytes.
//   - All answers of one reconcile have a budget: see [Budgets]. An answer outside of a reconcile
//     may weigh half of that, which is 4 MiB of text or 65,536 values of JSON. The managed fields
//     of the items of a list are dropped first.
//   - The connections deliver at most 6 MiB from the start of a reconcile until the start of the
//     next reconcile.
//   - An attempt ends after 15 s, and a call after 30 s.
func NewKubeconfigs(
	secrets client.Reader, key string, where func(object client.Object) client.ObjectKey, opts KubeconfigOptions,
) func(ctx context.Context, object client.Object) (client.Client, error) {
	return newKubeconfigs(key, opts, func(ctx context.Context, object client.Object) (*corev1.Secret, string, error) {
		name := where(object)
		secret := &corev1.Secret{}
		err := secrets.Get(ctx, name, secret)
		if apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err) {
			return nil, name.String(), nil
		}
		return secret, name.String(), err
	}).connectTo
}

// NewKubeconfigsByLabel is like [NewKubeconfigs], for Secrets with a label. It is an error if
// several Secrets match an object, or if the object is in another namespace.
func NewKubeconfigsByLabel(
	secrets client.Reader, key string, all KubeconfigSecrets, opts KubeconfigOptions,
) func(ctx context.Context, object client.Object) (client.Client, error) {
	return newKubeconfigs(key, opts, func(ctx context.Context, object client.Object) (*corev1.Secret, string, error) {
		if namespace := object.GetNamespace(); namespace != "" && namespace != all.Namespace {
			return nil, "", fmt.Errorf("%w: Secrets in %s are for objects of that namespace, have an object of %s",
				ErrInvalidKubeconfig, all.Namespace, namespace)
		}
		return all.findSecret(ctx, secrets, object.GetName())
	}).connectTo
}

// KubeconfigSecrets selects the Secrets with kubeconfigs: the Secrets in Namespace with Label. The
// value of the label is the name of the object that represents the cluster, in the same namespace.
// The operator needs the right to list and watch Secrets in that namespace.
type KubeconfigSecrets struct{ Namespace, Label string }

func (s KubeconfigSecrets) findSecret(
	ctx context.Context, secrets client.Reader, object string,
) (*corev1.Secret, string, error) {
	where := fmt.Sprintf("%s with the label %s=%s", s.Namespace, s.Label, object)
	if s.Namespace == "" || s.Label == "" {
		return nil, where, fmt.Errorf("%w: want a namespace and a label to find it by", ErrInvalidKubeconfig)
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
			ErrInvalidKubeconfig, found.Items[0].Name, found.Items[1].Name)
	}
}

func newKubeconfigs(key string, opts KubeconfigOptions, find findSecret) *kubeconfigs {
	invalid := option.NotNegative("KubeconfigOptions.Clients", opts.Clients)
	opts = opts.withDefaults()
	closeIdle := func(_ lru.Key, evicted any) {
		if former, ok := evicted.(connection); ok {
			utilnet.CloseIdleConnectionsFor(former.http.Transport)
		}
	}
	clients := lru.NewWithEvictionFunc(max(opts.Clients, 1), closeIdle)
	return &kubeconfigs{find: find, key: key, opts: opts, clients: clients, invalid: invalid}
}

// connectTo returns the client of the cluster that an object represents.
func (k *kubeconfigs) connectTo(ctx context.Context, object client.Object) (client.Client, error) {
	if k.invalid != nil {
		return nil, k.invalid
	}

	if object.GetUID() != "" {
		known, kept := k.findKept(client.ObjectKeyFromObject(object))
		// The object may be the Secret itself. No other object has the version of a kept Secret.
		isSameSecret := kept && known.version == versionOf(object)
		if isSameSecret {
			return known.client, nil
		}
	}

	secret, where, err := k.find(ctx, object)
	if err != nil {
		// The text only: NotFound would be about the Secret, and not about an object of the
		// cluster.
		return nil, fmt.Errorf("kubeconfig in Secret %s: %w", where, opaque{err})
	}
	if secret == nil {
		return nil, fmt.Errorf("%w: there is no Secret %s", ErrGone, where)
	}

	kubeconfig, err := contentOf(secret, k.key)
	if err != nil {
		return nil, fmt.Errorf("%w in Secret %s: %w", ErrInvalidKubeconfig, where, err)
	}
	return k.clientFor(secret, kubeconfig, where)
}

// clientFor returns the client that is kept for a kubeconfig, or another one.
func (k *kubeconfigs) clientFor(secret *corev1.Secret, kubeconfig []byte, where string) (client.Client, error) {
	name := client.ObjectKeyFromObject(secret)
	sum := sha256.Sum256(kubeconfig)
	known, kept := k.findKept(name)
	if kept && known.sum == sum {
		known.version = versionOf(secret)
		k.clients.Add(name, known)
		return known.client, nil
	}

	made, err := newConnection(kubeconfig, k.opts)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig in Secret %s, key %s: %w", where, k.key, err)
	}

	made.version = versionOf(secret)
	made.sum = sum
	k.clients.Remove(name) // To end the connections of the former client when they are idle.
	k.clients.Add(name, made)
	return made.client, nil
}

// versionOf names one version of one object: no two have the same UID.
func versionOf(object client.Object) string {
	return string(object.GetUID()) + "/" + object.GetResourceVersion()
}

func (k *kubeconfigs) findKept(name client.ObjectKey) (known connection, kept bool) {
	found, _ := k.clients.Get(name)
	known, kept = found.(connection)
	return known, kept
}

// opaque is an error without the methods of an API status. It keeps the cause for callers.
type opaque struct{ cause error }

func (o opaque) Error() string { return o.cause.Error() }

func (o opaque) Is(target error) bool { return errors.Is(o.cause, target) }

// contentOf names the keys that a Secret has if it has none with a kubeconfig.
func contentOf(secret *corev1.Secret, key string) ([]byte, error) {
	content, found := secret.Data[key]
	switch {
	case strings.TrimSpace(string(content)) != "":
		return content, nil
	case found:
		return nil, fmt.Errorf("want a kubeconfig under the key %q, which is empty; the Secret has %s",
			key, keysOf(secret))
	default:
		return nil, fmt.Errorf("want a kubeconfig under the key %q; the Secret has %s", key, keysOf(secret))
	}
}

// keysOf lists the keys of a Secret, and those that have a kubeconfig.
func keysOf(secret *corev1.Secret) string {
	const most = 10
	if len(secret.Data) == 0 {
		return "no keys"
	}

	var names, usable []string
	for _, name := range slices.Sorted(maps.Keys(secret.Data)) {
		names = append(names, fmt.Sprintf("%.80q", name))
		if loaded, err := clientcmd.Load(secret.Data[name]); err == nil && len(loaded.Clusters) > 0 {
			usable = append(usable, fmt.Sprintf("%.80q", name))
		}
	}

	if len(names) > most {
		names = append(names[:most], "…")
	}

	text := "the keys " + strings.Join(names, ", ")
	if len(usable) > 0 {
		text += ", of which " + strings.Join(usable[:min(len(usable), most)], ", ") + " has a kubeconfig"
	}
	return text
}

func newConnection(kubeconfig []byte, opts KubeconfigOptions) (connection, error) {
	config, err := opts.loadConfig(kubeconfig)
	if err != nil {
		return connection{}, fmt.Errorf("%w: %w", ErrInvalidKubeconfig, err)
	}

	config = rest.AddUserAgent(config, defaultUserAgent)
	config.Timeout = requestTimeout
	config.QPS = -1 // The concurrent reconciles are the limit.
	config.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	opts.Configure(config)

	if _, err := rest.TLSConfigFor(config); err != nil {
		return connection{}, fmt.Errorf("%w: %w", ErrInvalidKubeconfig, err)
	}

	made, connected, err := newClient(config, client.Options{Scheme: opts.Scheme}, opts.Mapper)
	return connection{client: made, http: connected}, err
}

// loadConfig refuses a kubeconfig that could take keys or files of the operator, or of other
// clusters, elsewhere. Writers of one kubeconfig must not gain more than that cluster.
func (o KubeconfigOptions) loadConfig(kubeconfig []byte) (*rest.Config, error) {
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

	if err := validateContext(loaded); err != nil {
		return nil, err
	}
	return clientcmd.NewDefaultClientConfig(*loaded, &clientcmd.ConfigOverrides{}).ClientConfig()
}

// validateContext names the missing part. The library would advise to set an environment variable.
func validateContext(loaded *clientcmdapi.Config) error {
	name := loaded.CurrentContext
	if name == "" {
		return fmt.Errorf("want a current-context, have none; the contexts are %s", namesOf(loaded.Contexts))
	}
	used := loaded.Contexts[name]
	if used == nil {
		return fmt.Errorf("current-context is %.80q; the contexts are %s", name, namesOf(loaded.Contexts))
	}
	if loaded.Clusters[used.Cluster] == nil {
		return fmt.Errorf("context %.80q refers to cluster %.80q; the clusters are %s",
			name, used.Cluster, namesOf(loaded.Clusters))
	}
	if used.AuthInfo != "" && loaded.AuthInfos[used.AuthInfo] == nil {
		return fmt.Errorf("context %.80q refers to user %.80q; the users are %s",
			name, used.AuthInfo, namesOf(loaded.AuthInfos))
	}
	return nil
}

func namesOf[V any](parts map[string]V) string {
	const most = 10
	if len(parts) == 0 {
		return "missing"
	}

	var names []string
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		names = append(names, fmt.Sprintf("%.80q", name))
	}

	if len(names) > most {
		names = append(names[:most], "…")
	}
	return strings.Join(names, ", ")
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
		return errors.New("want a server with https://, have another scheme")
	case cluster.ProxyURL != "" && !o.AllowProxy:
		return errors.New("want no proxy-url, have one")
	default:
		return nil
	}
}
