package skr

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
)

// KubeconfigKey is the key of the kubeconfig in its Secret.
const KubeconfigKey = "config"

// Connections has one client for each runtime. It may be used concurrently. The installer of the
// agent uses Connect, and the reconcilers use Get.
type Connections struct {
	*runtimes.Kubeconfigs

	controlPlane client.Reader

	mu    sync.Mutex
	known map[client.ObjectKey]*Runtime
}

// NewConnections returns connections with kubeconfigs in Secrets, which should be read without a
// cache. A Secret has the name of its Kyma. Clients have the kinds of the scheme.
func NewConnections(secrets client.Reader, scheme *runtime.Scheme) *Connections {
	opts := runtimes.KubeconfigOptions{
		Clients: math.MaxInt, Scheme: scheme, Mapper: apiutil.NewDynamicRESTMapper,
		Configure: func(config *rest.Config) { rest.AddUserAgent(config, FieldOwner) },
	}
	return &Connections{
		Kubeconfigs:  runtimes.NewKubeconfigs(secrets, KubeconfigKey, client.ObjectKeyFromObject, opts),
		controlPlane: secrets,
		known:        make(map[client.ObjectKey]*Runtime),
	}
}

// Get returns the runtime of the Kyma with that name. The error wraps [runtimes.ErrGone] if there
// is no Secret: the runtime does not exist yet, or no longer.
func (c *Connections) Get(ctx context.Context, name client.ObjectKey) (*Runtime, error) {
	kyma := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	connected, err := c.Connect(ctx, kyma)
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(err, runtimes.ErrGone) {
		delete(c.known, name)
	}
	if err != nil {
		return nil, err
	}
	if known := c.known[name]; known == nil || known.Client != connected {
		c.known[name] = &Runtime{Client: connected, ControlPlane: c.controlPlane}
	}
	return c.known[name], nil
}

// GaveUp reports whether an object is deleted for longer than after, and err means that its runtime
// does not answer. A runtime that answers, also with a refusal, is there.
func GaveUp(object client.Object, after time.Duration, err error) bool {
	var answer apierrors.APIStatus
	deleted := object.GetDeletionTimestamp()
	return err != nil && deleted != nil && time.Since(deleted.Time) > after && !errors.As(err, &answer)
}
