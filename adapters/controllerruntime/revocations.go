package controllerruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// RevocationsKey is the key that [RevocationsFromConfigMap] reads.
const RevocationsKey = "revoked"

var (
	errNoConfigMap = errors.New("ConfigMap does not exist: create it, with an empty list if no sender is revoked")
	errNoKey       = fmt.Errorf("ConfigMap has no key %q", RevocationsKey)
)

// revocations follows one ConfigMap.
type revocations struct {
	*intake.LiveRevocations

	cache cache.Cache
	name  types.NamespacedName
	// outage contains the failures of the API server. Only the watch of the cache reports them.
	outage outage
	// patience is how long an outage lasts until the list counts as broken. Only tests change it.
	patience atomic.Int64
}

// longOutage is longer than an API server needs to restart.
const longOutage = time.Minute

var (
	_ intake.Revocations             = (*revocations)(nil)
	_ manager.Runnable               = (*revocations)(nil)
	_ manager.LeaderElectionRunnable = (*revocations)(nil)
)

// RevocationsFromConfigMap returns the list of revoked senders in the key "revoked" of a ConfigMap,
// in the format of [intake.ParseRevocations]. Set it as Options.Revocations of the listener. It
// adds a watch of this ConfigMap to the controller manager, and the watch runs on every replica.
// The operator needs the rights to list and watch the ConfigMap: a Role with its name in
// resourceNames.
//
// Until the ConfigMap has been read, the listener is not ready and takes no events. If the
// ConfigMap later becomes malformed, deleted or forbidden, or cannot be read for a minute, the
// problem is logged and the last valid list stays in use. To end all revocations, empty the key.
// The default of the Logger is mgr.GetLogger().
func RevocationsFromConfigMap(
	mgr manager.Manager, name types.NamespacedName, opts intake.RevocationOptions,
) (intake.Revocations, error) {
	if option.IsNil(mgr) {
		return nil, fmt.Errorf("revocations: %w", errNoManager)
	}
	if name.Name == "" || name.Namespace == "" {
		return nil, fmt.Errorf("revocations: want name and namespace of a ConfigMap, have %q", name)
	}

	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("revocations: %w", err)
	}

	r := &revocations{name: name}
	r.patience.Store(int64(longOutage))
	one, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: scheme, Mapper: mgr.GetRESTMapper(),
		DefaultNamespaces: map[string]cache.Config{
			name.Namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name", name.Name)},
		},
		DefaultWatchErrorHandler: r.noteFailure,
	})
	if err != nil {
		return nil, fmt.Errorf("revocations: %w", err)
	}

	opts.Logger = cmp.Or(opts.Logger, Logger(mgr.GetLogger())).With(slog.String("configmap", name.String()))
	r.LiveRevocations = intake.NewLiveRevocations(opts)
	r.cache = one
	if err := mgr.Add(r); err != nil {
		return nil, fmt.Errorf("revocations: %w", err)
	}
	return r, nil
}

// NeedLeaderElection returns false, because every replica listens and needs the list.
func (*revocations) NeedLeaderElection() bool { return false }

// Start follows the ConfigMap until ctx ends.
func (r *revocations) Start(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.cache.Start(ctx) }()
	err := r.followConfigMap(ctx)
	if err != nil {
		stop()
	}
	failed := <-ended
	stop()
	return cmp.Or(err, failed)
}

// followConfigMap returns when the ConfigMap was read, and its handler gets each change.
func (r *revocations) followConfigMap(ctx context.Context) error {
	informer, err := r.cache.GetInformer(ctx, &corev1.ConfigMap{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("revocations: %w", err)
	}
	registered, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    r.takeConfigMap,
		UpdateFunc: func(_, now any) { r.takeConfigMap(now) },
		DeleteFunc: func(any) { r.Fail(errNoConfigMap) },
	})
	if err != nil {
		return fmt.Errorf("revocations: %w", err)
	}
	if toolscache.WaitForCacheSync(ctx.Done(), registered.HasSynced) && r.isMissing(ctx) {
		r.Fail(errNoConfigMap)
	}
	return nil
}

// noteFailure reports a watch that is not established. A watch that ends is established again, and
// the list stays. The list counts as broken if the API server refuses the watch, or fails for long,
// because new entries would have no effect.
func (r *revocations) noteFailure(ctx context.Context, reflector *toolscache.Reflector, err error) {
	length := r.outage.noteFailure(time.Now())
	isUnread := r.RevocationList() == nil
	if isUnread || isRefusal(err) || length >= time.Duration(r.patience.Load()) {
		r.Fail(err)
	}
	toolscache.DefaultWatchErrorHandler(ctx, reflector, err)
}

// isRefusal reports whether an API server gives the same answer to each attempt, for example
// because a right is missing.
func isRefusal(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err)
}

// outage is a series of failures. The goroutine of a watch uses it alone.
type outage struct {
	first time.Time
	last  time.Time
}

// calm is a time without failures that ends a series. It is longer than the longest pause between
// two attempts of a watch, which is 30 s.
const calm = 2 * time.Minute

// noteFailure adds a failure to the series, or begins a new series with it. It returns how long the
// series has lasted.
func (o *outage) noteFailure(now time.Time) time.Duration {
	if now.Sub(o.last) > calm {
		o.first = now
	}
	o.last = now
	return now.Sub(o.first)
}

func (r *revocations) isMissing(ctx context.Context) bool {
	return r.cache.Get(ctx, r.name, &corev1.ConfigMap{}) != nil
}

func (r *revocations) takeConfigMap(object any) {
	found, ok := object.(*corev1.ConfigMap)
	if !ok {
		return
	}
	text, ok := found.Data[RevocationsKey]
	if !ok {
		r.Fail(errNoKey)
		return
	}
	_ = r.Replace([]byte(text)) // It is logged, and the last good list stays.
}
