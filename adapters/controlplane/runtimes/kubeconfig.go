package runtimes

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/installation"
)

const (
	// requestTimeout bounds each request to a runtime.
	requestTimeout = 15 * time.Second
	// unused is how long a client is kept that nobody asks for: its runtime was removed before its Secret.
	unused = time.Hour
)

// Kubeconfigs connects to runtimes whose kubeconfigs are in Secrets of the control plane. It keeps the client of a Secret until that
// changes or is gone, or nobody has asked for it for an hour. Make one with [NewKubeconfigs]; it may be used concurrently.
type Kubeconfigs struct {
	secrets client.Reader
	where   func(object client.Object) client.ObjectKey
	key     string

	mu      sync.Mutex
	clients map[client.ObjectKey]connection
}

type connection struct {
	version string
	client  client.Client
	asked   time.Time
}

// NewKubeconfigs reads kubeconfigs from a key of the Secrets that where names, such as "config". The reader should not cache all Secrets of the
// control plane: mgr.GetAPIReader does not.
func NewKubeconfigs(secrets client.Reader, key string, where func(object client.Object) client.ObjectKey) *Kubeconfigs {
	return &Kubeconfigs{secrets: secrets, where: where, key: key, clients: make(map[client.ObjectKey]connection)}
}

// Connect is a [Connect]. A Secret that is not there means [ErrGone]. The client knows only the kinds that the agent's installation needs: it is
// not for what the operator itself does in the runtime.
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

	made, err := newClient(secret.Data[k.key])
	if err != nil {
		return nil, fmt.Errorf("kubeconfig in Secret %s, key %s: %w", name, k.key, err)
	}

	k.keep(name, connection{secret.ResourceVersion, made, time.Now()})

	return made, nil
}

// keep makes room at the same time, so that there are never more than the runtimes of an hour.
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

func newClient(kubeconfig []byte) (client.Client, error) {
	loaded, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, err //nolint:wrapcheck // The caller says of what.
	}

	if err := selfContained(loaded); err != nil {
		return nil, err
	}

	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, err //nolint:wrapcheck // The caller says of what.
	}

	config = rest.AddUserAgent(config, installation.FieldOwner)
	config.Timeout = requestTimeout

	// The scheme is empty, as nothing typed is sent.
	return client.New(config, client.Options{Scheme: runtime.NewScheme(), Mapper: installation.RESTMapper()}) //nolint:wrapcheck // The same.
}

// selfContained refuses what would make the operator run a program or send a file of its own: whoever may write the Secret of one
// runtime must not get hold of the others.
func selfContained(config *clientcmdapi.Config) error {
	for name, user := range config.AuthInfos {
		if user.Exec != nil || user.AuthProvider != nil || user.TokenFile != "" || user.ClientCertificate != "" || user.ClientKey != "" {
			return fmt.Errorf("user %.80q: want credentials inside the kubeconfig, have a program or a file", name)
		}
	}

	for name, cluster := range config.Clusters {
		if cluster.CertificateAuthority != "" {
			return fmt.Errorf("cluster %.80q: want the CA inside the kubeconfig, have a file", name)
		}
	}

	return nil
}
