// Package keysource reads the key material of an operator's listener from a Secret.
//
// A mounted Secret and [keys.Files] do the same, except for an operator that issues its own
// certificate: its pod cannot start before the Secret exists. The package belongs to this module
// rather than to adapters/controllerruntime, because only operators that also issue certificates
// need it.
package keysource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

const (
	readTimeout = 10 * time.Second
	// firstPoll bounds the poll without any key material.
	firstPoll = time.Second
)

// Secret is a [keys.Source] that polls ca.crt, tls.crt and tls.key of a Secret while [Secret.Start]
// runs. All three keys are required. A missing or broken Secret never replaces valid key material.
// All methods are safe for concurrent use.
type Secret struct {
	reader client.Reader
	name   types.NamespacedName
	opts   keys.FilesOptions

	current atomic.Pointer[generation]
}

var (
	_ keys.Source                    = (*Secret)(nil)
	_ manager.Runnable               = (*Secret)(nil)
	_ manager.LeaderElectionRunnable = (*Secret)(nil)
)

// generation contains the key material in use, its content, and the last failure.
type generation struct {
	material *keys.Material
	content  [3]string // CA bundle, certificate and key
	err      error
}

// NewSecret returns a source that reads the Secret with that name. With the API reader of a
// manager, the source needs no cache and only the right to get this Secret. Until there is key
// material, the Secret is read at least every second. A Secret that does not exist yet is not
// reported as refused. The default of the Logger is ctrl.Log.
func NewSecret(reader client.Reader, name types.NamespacedName, opts keys.FilesOptions) (*Secret, error) {
	complete := option.Unless(reader != nil && name.Name != "", "no reader or no name of a Secret, want both")
	if err := errors.Join(option.NoneNegative(opts), complete); err != nil {
		return nil, fmt.Errorf("keysource: %w", err)
	}

	opts = option.WithDefaults(opts, keys.FilesOptions{
		Poll:   5 * time.Second,
		Hooks:  keys.FilesHooks{Reloaded: func(keys.Generation) {}, Refused: func(keys.Refusal) {}},
		Logger: slog.New(logr.ToSlogHandler(log.Log)),
	})

	s := &Secret{reader: reader, name: name, opts: opts}
	s.current.Store(&generation{err: fmt.Errorf("keysource: Secret %s was not read yet", name)})
	return s, nil
}

// Material returns the last valid key material. Until there is valid key material, Material returns
// an error with the reason.
func (s *Secret) Material() (*keys.Material, error) {
	g := s.current.Load()
	if g.material == nil {
		return nil, g.err
	}
	return g.material, nil
}

// NeedLeaderElection returns false, so that a manager starts the source on every replica, because
// every replica listens.
func (*Secret) NeedLeaderElection() bool { return false }

// Start reads the Secret every [keys.FilesOptions].Poll until ctx ends, and then returns nil.
func (s *Secret) Start(ctx context.Context) error {
	for {
		s.refresh(ctx)
		pause := s.opts.Poll

		if s.current.Load().material == nil {
			pause = min(pause, firstPoll)
		}

		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (s *Secret) refresh(ctx context.Context) {
	old := s.current.Load()
	next, err := s.readSecret(ctx, old)

	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.reportFailure(old, err)
	case next.material != old.material:
		s.current.Store(next)
		s.opts.Logger.InfoContext(ctx, "key material reloaded",
			slog.String("secret", s.name.String()),
			slog.String("fingerprint", next.material.Fingerprint),
			slog.Time("not_after", next.material.NotAfter))

		if len(next.material.Skipped) > 0 {
			s.opts.Logger.WarnContext(ctx, "the key material contains unused PEM blocks",
				slog.String("secret", s.name.String()), slog.Any("skipped", next.material.Skipped))
		}

		s.opts.Hooks.Reloaded(keys.Generation{NotBefore: next.material.NotBefore, NotAfter: next.material.NotAfter})
	default:
		s.current.Store(next)
	}
}

// readSecret returns the material of old for a Secret with unchanged keys.
func (s *Secret) readSecret(ctx context.Context, old *generation) (*generation, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()

	var secret corev1.Secret
	if err := s.reader.Get(ctx, s.name, &secret); err != nil {
		return nil, fmt.Errorf("keysource: read Secret %s: %w", s.name, err)
	}

	found := [3]string{ // Empty text for a key that is missing, which is refused as such.
		string(secret.Data[corev1.ServiceAccountRootCAKey]), string(secret.Data[corev1.TLSCertKey]),
		string(secret.Data[corev1.TLSPrivateKeyKey]),
	}
	if old.material != nil && found == old.content {
		return &generation{material: old.material, content: old.content}, nil
	}

	material, err := keys.NewMaterial([]byte(found[0]), []byte(found[1]), []byte(found[2]))
	if err != nil {
		return nil, fmt.Errorf("keysource: Secret %s: %w", s.name, err)
	}

	return &generation{material: material, content: found}, nil
}

func (s *Secret) reportFailure(old *generation, err error) {
	s.current.Store(&generation{material: old.material, content: old.content, err: err})
	if old.err != nil && old.err.Error() == err.Error() {
		return
	}
	if old.material == nil && apierrors.IsNotFound(err) {
		s.opts.Logger.Info("wait for the Secret with key material", slog.String("secret", s.name.String()))
		return
	}

	s.opts.Logger.Warn("key material in the Secret is broken or unreadable: the last good key material stays in use",
		slog.Any("error", err), slog.Bool("has_good_one", old.material != nil))
	s.opts.Hooks.Refused(keys.Refusal{Problem: keys.ProblemOf(err)})
}
