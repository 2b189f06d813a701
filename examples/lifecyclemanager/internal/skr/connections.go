package skr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	// KubeconfigKey is the key of the kubeconfig in its Secret.
	KubeconfigKey = "config"
	// MaxClients is the most runtimes that are kept. Each takes about 0.2 MiB, mostly for the
	// kinds that it knows.
	MaxClients = 512
)

// Connections keeps one client for each runtime. It may be used concurrently. The installer of the
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
		Clients: MaxClients, Scheme: scheme, Mapper: newMapper,
		Configure: func(config *rest.Config) { rest.AddUserAgent(config, FieldOwner) },
	}
	return &Connections{
		Connect:      runtimes.NewKubeconfigs(secrets, KubeconfigKey, client.ObjectKeyFromObject, opts),
		controlPlane: secrets,
		known:        make(map[client.ObjectKey]*Runtime),
	}
}

// newMapper returns a mapper that learns the kinds of a runtime from the runtime. Package remote
// bounds the answers.
func newMapper(config *rest.Config, c *http.Client) (meta.RESTMapper, error) {
	own := *c
	own.Transport = discovery{c.Transport}
	learned, err := apiutil.NewDynamicRESTMapper(config, &own)
	return mapper{learned}, err
}

// mapper knows Namespaces without a request. A request of a mapper ends with its own timeout, and
// not with the visit. Therefore the first request of a visit needs no mapper.
type mapper struct{ meta.RESTMapper }

// RESTMapping implements [meta.RESTMapper].
func (m mapper) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if namespaces := corev1.SchemeGroupVersion; kind == namespaces.WithKind("Namespace").GroupKind() {
		return &meta.RESTMapping{
			Resource: namespaces.WithResource("namespaces"), GroupVersionKind: namespaces.WithKind(kind.Kind),
			Scope: meta.RESTScopeRoot,
		}, nil
	}
	return m.RESTMapper.RESTMapping(kind, versions...)
}

// discovery explains a list of kinds that is too large.
type discovery struct{ next http.RoundTripper }

var errManyKinds = errors.New("the runtime has more kinds than the operator reads")

// RoundTrip implements [http.RoundTripper].
func (d discovery) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := d.next.RoundTrip(request)
	if errors.Is(err, remote.ErrLargeAnswer) {
		return nil, fmt.Errorf("%w: %w", errManyKinds, err)
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
		if len(c.known) >= MaxClients {
			clear(c.known) // Else they would hold clients that are not kept. Each is prepared again.
		}
		c.known[name] = &Runtime{Client: connected, direct: connected, controlPlane: c.controlPlane, state: &state{}}
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

// GaveUp reports whether the deletion of an object began longer ago than after (0 means 1 h), and
// err is the error of a connection. A runtime that answers still exists, and an invalid kubeconfig
// proves nothing about the runtime.
func GaveUp(object client.Object, after time.Duration, err error) bool {
	var answer apierrors.APIStatus
	var failed *url.Error // Each request of a client that fails without an answer ends with one.
	deleted := object.GetDeletionTimestamp()
	return deleted != nil && time.Since(deleted.Time) > cmp.Or(after, giveUpAfter) &&
		errors.As(err, &failed) && !errors.As(err, &answer) && !errors.Is(err, errManyKinds)
}

// Answers reports whether the runtime answers a short request. The time of a visit may end while a
// runtime is slow, or has many objects.
func (r *Runtime) Answers(ctx context.Context) bool {
	const patience = 5 * time.Second

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()

	_, err := r.Cluster(ctx)
	var answer apierrors.APIStatus // A refusal is an answer, too.
	return err == nil || errors.As(err, &answer)
}

// IsSilent reports whether there is no connection to a runtime, or it does not answer.
func IsSilent(ctx context.Context, there *Runtime) bool { return there == nil || !there.Answers(ctx) }

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
