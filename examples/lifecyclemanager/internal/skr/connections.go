package skr

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	// KubeconfigKey is the key of the kubeconfig in its Secret.
	KubeconfigKey = "config"
	// maxClients is the most runtimes that are kept. Each takes about 0.2 MiB, mostly for the
	// kinds that it knows.
	maxClients = 512
	// maxDiscovery bounds, in bytes, one list of the kinds of a runtime, which is kept.
	maxDiscovery = 256 << 10
)

// Connections has one client for each runtime. It may be used concurrently. The installer of the
// agent uses Connect, and the reconcilers use Get.
type Connections struct {
	// Connect returns a client for a runtime, for [runtimes.SetUp].
	Connect func(ctx context.Context, kyma client.Object) (client.Client, error)

	controlPlane client.Reader

	mu    sync.Mutex
	known map[client.ObjectKey]*Runtime
}

// NewConnections returns connections with kubeconfigs in Secrets, which should be read without a
// cache. A Secret has the name of its Kyma. Clients have the kinds of the scheme.
func NewConnections(secrets client.Reader, scheme *runtime.Scheme) *Connections {
	opts := runtimes.KubeconfigOptions{
		Clients: maxClients, Scheme: scheme, Mapper: newMapper,
		Configure: func(config *rest.Config) { rest.AddUserAgent(config, FieldOwner) },
	}
	return &Connections{
		Connect:      runtimes.NewKubeconfigs(secrets, KubeconfigKey, client.ObjectKeyFromObject, opts),
		controlPlane: secrets,
		known:        make(map[client.ObjectKey]*Runtime),
	}
}

// newMapper returns a mapper that learns the kinds of a runtime from bounded answers.
func newMapper(config *rest.Config, c *http.Client) (meta.RESTMapper, error) {
	own := *c
	own.Transport = discovery{c.Transport}
	return apiutil.NewDynamicRESTMapper(config, &own)
}

// discovery cuts answers at maxDiscovery, so that a longer one cannot be decoded.
type discovery struct{ next http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (d discovery) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := d.next.RoundTrip(request)
	if err == nil {
		answer.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(answer.Body, maxDiscovery), answer.Body}
	}
	return answer, err
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
		if len(c.known) >= maxClients {
			clear(c.known) // Else they would hold clients that are not kept. Each is prepared again.
		}
		c.known[name] = &Runtime{Client: connected, controlPlane: c.controlPlane, state: &state{}}
	}
	return c.known[name], nil
}

// Connect returns the runtime of a Kyma for one reconcile of a request. See [Connections.Get].
type Connect func(ctx context.Context, request, kyma client.ObjectKey) (*Runtime, error)

// For returns a Connect for the controller that events serves. A resend of a write that a reconcile
// has read starts none, see [controllerruntime.Source.Client].
func (c *Connections) For(events *controllerruntime.Source[ctrl.Request]) Connect {
	return func(ctx context.Context, request, kyma client.ObjectKey) (*Runtime, error) {
		there, err := c.Get(ctx, kyma)
		if err != nil {
			return nil, err
		}
		return there.Through(events.Client(
			ctrl.Request{NamespacedName: request}, core.RuntimeID(kyma.Name), there.Client)), nil
	}
}

// giveUpAfter is the default of GaveUp.
const giveUpAfter = time.Hour

// GaveUp reports whether an object is deleted for longer than after, 0 for 1 h, and err means that
// its runtime does not answer. A runtime that answers, also with a refusal, is there.
func GaveUp(object client.Object, after time.Duration, err error) bool {
	var answer apierrors.APIStatus
	deleted := object.GetDeletionTimestamp()
	return err != nil && deleted != nil && time.Since(deleted.Time) > cmp.Or(after, giveUpAfter) &&
		!errors.As(err, &answer)
}

// maxText bounds the texts of a runtime in status, logs and Events, in bytes.
const maxText = 1024

// Short cuts a text at 1,024 bytes.
func Short(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}

// shortError has a text of at most 1,024 bytes.
type shortError struct{ error }

// Error implements [error].
func (e shortError) Error() string { return Short(e.error.Error()) }

// Unwrap returns the whole error.
func (e shortError) Unwrap() error { return e.error }
