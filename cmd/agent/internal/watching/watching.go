// Package watching is the change source of SOURCE=informer. It is the only package of the agent
// that links client-go.
package watching

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/runtime-watcher/runtime-watcher/adapters/informer"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/cmd/agent/internal/webhookconfig"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/canary"
)

// Settings are the settings of a [Source].
type Settings struct {
	// Watches are the watches of the source.
	Watches []watch.Watch
	// ExcludedNamespaces are the namespaces that are not watched.
	ExcludedNamespaces []string
	// Server is the URL of the API server. Default: the API server of the pod's cluster.
	Server string
	// TokenFile and CAFile are the files with the credentials. Default: the files of the pod's
	// service account.
	TokenFile, CAFile string
	// Getenv returns an environment variable. If Server is empty, Getenv is called for
	// KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT.
	Getenv func(string) string
	// OwnerAnnotation is the annotation that names the owner. Default: [core.OwnerAnnotation].
	OwnerAnnotation string
	// RequireOwner means that no event is sent for an object without an owner.
	RequireOwner bool
}

// Watches reads Watcher resources in YAML. Without an error, the result is never nil, even if it is
// empty. A watch without a valid manager is an error. Any other mistake in a watch is reported for
// the manager of the watch.
func Watches(text string) ([]watch.Watch, error) {
	watches, err := webhookconfig.ReadWatchers(strings.NewReader(text))
	problems := []error{err}
	for _, w := range watches {
		_, invalid := core.ParseManager(string(w.Manager))
		problems = append(problems, invalid)
	}

	return append([]watch.Watch{}, watches...), errors.Join(problems...)
}

// Managers returns others, and the managers of the watches that are not among others.
func (s *Settings) Managers(others []core.Manager) []core.Manager {
	managers := slices.Clone(others)
	for _, w := range s.Watches {
		if !slices.Contains(managers, w.Manager) {
			managers = append(managers, w.Manager)
		}
	}
	return managers
}

// Source is the change source of an agent. Create it with [New].
type Source struct {
	*informer.Source

	// Metrics are the metrics of the source. They are not registered yet.
	Metrics *watchermetrics.Informer

	inbox   atomic.Pointer[agent.Inbox]
	refused map[core.Manager]error
}

// New returns a source that has not started.
func New(settings Settings, log *slog.Logger) (*Source, error) {
	config, err := settings.restConfig()
	if err != nil {
		return nil, err
	}

	metrics, err := watchermetrics.NewInformer(watchermetrics.Options{Managers: settings.Managers(nil)})
	if err != nil {
		return nil, err
	}

	s := &Source{Metrics: metrics, refused: make(map[core.Manager]error)}
	valid := s.validWatches(settings, log)
	s.Source, err = informer.New(config, core.AcceptorFunc(s.acceptEvent), valid, informer.Options{
		ExcludedNamespaces: settings.ExcludedNamespaces,
		OwnerAnnotation:    settings.OwnerAnnotation,
		RequireOwner:       settings.RequireOwner,
		Logger:             log,
		Hooks:              informer.Hooks{Observed: metrics.Observed, Proved: s.noteProof, Failed: metrics.Failed},
	})
	return s, err
}

// restConfig returns the configuration for the connection to the API server. The files are read
// again when they change.
func (s *Settings) restConfig() (*rest.Config, error) {
	config := &rest.Config{
		Host: s.Server, BearerTokenFile: cmp.Or(s.TokenFile, canary.DefaultTokenFile),
		TLSClientConfig: rest.TLSClientConfig{CAFile: cmp.Or(s.CAFile, canary.DefaultCAFile)},
	}
	if config.Host != "" {
		return config, nil
	}

	host := s.Getenv("KUBERNETES_SERVICE_HOST")
	port := s.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("informer: no API server: set INFORMER_API_SERVER, because KUBERNETES_SERVICE_HOST " +
			"and KUBERNETES_SERVICE_PORT are not set, which means that the agent does not run in a pod")
	}

	config.Host = "https://" + net.JoinHostPort(host, port)
	return config, nil
}

// validWatches returns the watches that are valid. An invalid watch affects only its own manager.
func (s *Source) validWatches(settings Settings, log *slog.Logger) (valid []watch.Watch) {
	for _, w := range settings.Watches {
		if err := informer.Validate(&w); err != nil {
			log.Warn("cannot watch the resource of a Watcher, so its changes are missed", slog.Any("error", err))
			s.refused[w.Manager] = err
			continue
		}
		valid = append(valid, w)
	}
	return valid
}

// Ready returns nil if every watch is established.
func (s *Source) Ready() error {
	return errors.Join(append([]error{s.Source.Ready()}, s.refusedWatches()...)...)
}

func (s *Source) refusedWatches() (problems []error) {
	for _, manager := range slices.Sorted(maps.Keys(s.refused)) {
		problems = append(problems, s.refused[manager])
	}
	return problems
}

// Problem returns why changes for a manager are not observed, or "" if they are observed.
func (s *Source) Problem(manager core.Manager) string {
	problem := s.Source.Problem(manager)
	if refused := s.refused[manager]; problem == "" && refused != nil {
		return refused.Error()
	}
	return problem
}

// Parts are the parts of an agent with this source.
func (s *Source) Parts() agent.Parts {
	return agent.Parts{Source: s.startWatches, Problem: s.Problem, Ready: s.Ready}
}

func (s *Source) startWatches(ctx context.Context, inbox *agent.Inbox) error {
	s.inbox.Store(inbox)
	return s.Start(ctx)
}

// acceptEvent has no inbox during [Source.Try].
func (s *Source) acceptEvent(manager core.Manager, event core.WatchEvent) core.Outcome {
	if inbox := s.inbox.Load(); inbox != nil {
		return inbox.Accept(manager, event)
	}
	return core.Dropped
}

func (s *Source) noteProof(proof hook.Proof) {
	s.Metrics.Proved(proof)
	if inbox := s.inbox.Load(); inbox != nil {
		inbox.Proved(proof.Manager)
	}
}

const tryTimeout = 10 * time.Second

// Try establishes the watches, and ends them. It returns the problems of the watches that cannot be
// established within 10 s. It must be the only call.
func (s *Source) Try(ctx context.Context) (problems []error) {
	const pause = 20 * time.Millisecond

	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Start(ctx) }()

	isReady := func(context.Context) (bool, error) { return s.Source.Ready() == nil, nil }
	_ = wait.PollUntilContextCancel(ctx, pause, false, isReady) // Ready returns the reason.
	problems = []error{s.Source.Ready()}

	cancel()
	problems = append(append(problems, <-ended), s.refusedWatches()...)
	return slices.DeleteFunc(problems, func(err error) bool { return err == nil })
}
