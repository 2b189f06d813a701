package runtimes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/internal/runtimekinds"
)

const (
	// requestTimeout bounds each request to a runtime.
	requestTimeout = 15 * time.Second
	userAgent      = "runtime-watcher-installation"
	// unused is how long a client is kept after its last use.
	unused = time.Hour
)

// Kubeconfigs connects to runtimes with kubeconfigs in Secrets of the control plane. It keeps the
// client of a Secret until the Secret changes or is gone, or for an hour without use. Make one with
// [NewKubeconfigs]. It may be used concurrently.
type Kubeconfigs struct {
	secrets client.Reader
	where   func(object client.Object) client.ObjectKey
	key     string
	opts    KubeconfigOptions

	mu      sync.Mutex
	clients map[client.ObjectKey]connection
}

type connection struct {
	version string
	client  client.Client
	asked   time.Time
}

// KubeconfigOptions are the optional settings of [NewKubeconfigs]. The zero value is the documented
// default.
type KubeconfigOptions struct {
	// AllowInsecure accepts servers without TLS, and skips the verification of their certificates.
	// The keys of a runtime go over that connection. Default: false.
	AllowInsecure bool
	// AllowProxy accepts the proxy-url of a kubeconfig. Default: false.
	AllowProxy bool
}

// NewKubeconfigs reads kubeconfigs from one key, such as "config", of the Secrets that where
// returns. The reader should not cache all Secrets of the control plane. The reader of
// mgr.GetAPIReader does not.
func NewKubeconfigs(
	secrets client.Reader, key string, where func(object client.Object) client.ObjectKey, opts KubeconfigOptions,
) *Kubeconfigs {
	return &Kubeconfigs{
		secrets: secrets, where: where, key: key, opts: opts, clients: make(map[client.ObjectKey]connection),
	}
}

// Connect is a [Connect]. A missing Secret means [ErrGone]. The client has only the kinds of the
// agent's installation.
func (k *Kubeconfigs) Connect(ctx context.Context, object client.Object) (client.Client, error) {
	name := k.where(object)

	var secret corev1.Secret

	err := k.secrets.Get(ctx, name, &secret)
	if apierrors.IsNotFound(err) {
		k.forget(name)
		return nil, fmt.Errorf("%w: there is no Secret %s", ErrGone, name)
	}

	if err != nil {
		return nil, fmt.Errorf("kubeconfig in Secret %s: %w", name, err)
	}

	if known := k.known(name, secret.ResourceVersion); known != nil {
		return known, nil
	}

	made, err := newClient(secret.Data[k.key], k.opts)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig in Secret %s, key %s: %w", name, k.key, err)
	}

	k.keep(name, connection{secret.ResourceVersion, made, time.Now()})

	return made, nil
}

// keep also drops unused clients.
func (k *Kubeconfigs) keep(name client.ObjectKey, made connection) {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.clients, func(_ client.ObjectKey, c connection) bool { return made.asked.Sub(c.asked) > unused })
	k.clients[name] = made
}

func (k *Kubeconfigs) known(name client.ObjectKey, version string) client.Client {
	k.mu.Lock()
	defer k.mu.Unlock()
	known, ok := k.clients[name]
	if !ok || known.version != version {
		return nil
	}
	known.asked = time.Now()
	k.clients[name] = known
	return known.client
}

func (k *Kubeconfigs) forget(name client.ObjectKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.clients, name)
}

func newClient(kubeconfig []byte, opts KubeconfigOptions) (client.Client, error) {
	loaded, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalidKubeconfig, err)
	}

	if err := opts.validate(loaded); err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalidKubeconfig, err)
	}

	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalidKubeconfig, err)
	}

	config = rest.AddUserAgent(config, userAgent)
	config.Timeout = requestTimeout

	// The scheme is empty, as nothing typed is sent.
	return client.New(config, client.Options{Scheme: runtime.NewScheme(), Mapper: runtimekinds.RESTMapper()})
}

// errInvalidKubeconfig means that another kubeconfig is needed.
var errInvalidKubeconfig = errors.New("invalid kubeconfig")

// validate refuses a kubeconfig that could take keys or files of the operator, or of other
// runtimes, elsewhere. Writers of one kubeconfig must not gain more than that runtime.
func (o KubeconfigOptions) validate(config *clientcmdapi.Config) error {
	for _, name := range slices.Sorted(maps.Keys(config.AuthInfos)) {
		if err := validateUser(config.AuthInfos[name]); err != nil {
			return fmt.Errorf("user %.80q: %w", name, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(config.Clusters)) {
		if err := o.validateCluster(config.Clusters[name]); err != nil {
			return fmt.Errorf("cluster %.80q: %w", name, err)
		}
	}
	return nil
}

func validateUser(user *clientcmdapi.AuthInfo) error {
	if user.Exec != nil || user.AuthProvider != nil {
		return errors.New("want credentials inside the kubeconfig, have a program")
	}
	if user.TokenFile != "" || user.ClientCertificate != "" || user.ClientKey != "" {
		return errors.New("want credentials inside the kubeconfig, have a file")
	}
	return nil
}

func (o KubeconfigOptions) validateCluster(cluster *clientcmdapi.Cluster) error {
	switch {
	case cluster.CertificateAuthority != "":
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
