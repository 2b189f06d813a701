package skr

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/runtimes"
)

const (
	// KubeconfigKey is the key of the kubeconfig in its Secret.
	KubeconfigKey = "config"
	// timeout bounds each request to a runtime.
	timeout = 15 * time.Second
)

// Connections has one connection for each runtime. It may be used concurrently.
type Connections struct {
	secrets client.Reader
	scheme  *runtime.Scheme

	mu    sync.Mutex
	known map[client.ObjectKey]*Runtime
}

// NewConnections returns connections with kubeconfigs in Secrets, which should be read without a
// cache. Clients have the kinds of the scheme.
func NewConnections(secrets client.Reader, scheme *runtime.Scheme) *Connections {
	return &Connections{secrets: secrets, scheme: scheme, known: make(map[client.ObjectKey]*Runtime)}
}

// Get returns the runtime with the kubeconfig in a Secret. The error wraps [runtimes.ErrGone] if
// there is no Secret: the runtime does not exist yet, or no longer.
func (c *Connections) Get(ctx context.Context, name client.ObjectKey) (*Runtime, error) {
	secret := &corev1.Secret{}
	err := c.secrets.Get(ctx, name, secret)
	if apierrors.IsNotFound(err) {
		c.keep(name, nil)
		return nil, fmt.Errorf("%w: there is no Secret %s", runtimes.ErrGone, name)
	}
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	if known := c.get(name); known != nil && known.version == secret.ResourceVersion {
		return known, nil
	}
	made, err := connect(secret.Data[KubeconfigKey], c.scheme)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig in Secret %s: %w", name, err)
	}
	made.version = secret.ResourceVersion
	c.keep(name, made)
	return made, nil
}

func (c *Connections) get(name client.ObjectKey) *Runtime {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[name]
}

// keep replaces the connection of a runtime. Nil is none.
func (c *Connections) keep(name client.ObjectKey, made *Runtime) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, name)
	if made != nil {
		c.known[name] = made
	}
}

func connect(kubeconfig []byte, scheme *runtime.Scheme) (*Runtime, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	if err := validate(config); err != nil {
		return nil, err
	}
	config = rest.AddUserAgent(config, FieldOwner)
	config.Timeout = timeout
	config.QPS = -1 // The API server of the runtime limits its clients itself.
	made, err := client.New(config, client.Options{Scheme: scheme})
	return &Runtime{Client: made}, err
}

// validate refuses kubeconfigs that run a program, read a file of the operator, or trust any
// server. The writer of a kubeconfig must not gain more than that runtime.
func validate(config *rest.Config) error {
	switch {
	case config.ExecProvider != nil || config.AuthProvider != nil:
		return errors.New("want credentials inside, have a program")
	case config.BearerTokenFile+config.CertFile+config.KeyFile+config.CAFile != "":
		return errors.New("want credentials and CA inside, have a file")
	case config.Insecure:
		return errors.New("want a verified server, have insecure-skip-tls-verify")
	default:
		return nil
	}
}
