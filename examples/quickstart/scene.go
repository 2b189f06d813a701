package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2" //nolint:depguard // client-go logs through it, and would do so to the terminal.
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/runtime-watcher/runtime-watcher/test/controlplane" //nolint:depguard // An example is not released either.
)

// patience is how long anything that takes a moment may take on a busy machine.
const patience = 30 * time.Second

// scene is what plays: two clusters, and what runs in them.
type scene struct {
	settings settings
	report   *report
	diary    diary
	started  time.Time
	// fail ends everything with an error.
	fail context.CancelCauseFunc

	// dir is private to this run, and holds key material and kubeconfigs; logs is below it.
	dir, logs string
	log       *slog.Logger
	// finished means that the steps are through.
	finished bool

	assets, agentBinary   string
	controlPlane, runtime *controlplane.ControlPlane
	pki                   *pki
	operator              *operator
	agent                 *agent

	// closers end what was started, the last first.
	closers []func() error
}

func newScene(settings settings, report *report) (*scene, error) {
	dir, err := os.MkdirTemp("", "runtime-watcher-quickstart-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for this run: %w; TMPDIR may name another one", err)
	}

	s := &scene{settings: settings, report: report, started: time.Now(), dir: dir, logs: filepath.Join(dir, "logs")}
	if err := s.openLog(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}

	return s, nil
}

// openLog sends to a file what libraries have to say.
func (s *scene) openLog() error {
	if err := os.Mkdir(s.logs, 0o700); err != nil {
		return err
	}

	file, err := os.Create(filepath.Join(s.logs, "quickstart.log"))
	if err != nil {
		return err
	}

	s.closers = append(s.closers, file.Close)
	s.log = slog.New(slog.NewTextHandler(file, nil))
	log.SetLogger(logr.FromSlogHandler(s.log.Handler()))
	klog.SetSlogLogger(s.log)

	return nil
}

// play is the whole story.
func (s *scene) play(ctx context.Context) error {
	s.report.title(s.settings)

	for _, stage := range s.stages() {
		if err := s.report.stage(ctx, stage); err != nil {
			return fmt.Errorf("%s: %w\n  next: %s", stage.name, err, stage.next)
		}
	}

	if err := s.playSteps(ctx); err != nil {
		return err
	}

	s.finished = true
	if s.settings.serve {
		return s.serve(ctx)
	}

	s.report.printf("Try it by hand: make demo ARGS=--serve\n")

	return nil
}

// stage is a part of the preparation.
type stage struct {
	name string
	// prepare returns what there is to say of it.
	prepare func(context.Context) (string, error)
	// doing is what to say when it takes long, next what to do when it fails.
	doing, next string
}

// stages are in order: each needs those before it.
func (s *scene) stages() []stage {
	return []stage{
		{"programs", s.build, "building; the first time takes minutes", "see what README.md requires, and run it again"},
		{"API servers", s.startAPIServers, "starting two of them", "see the logs; they need 1 GB of memory together"},
		{"certificates", s.issueCertificates, "issuing", "see whether the disk is full"},
		{"operator", s.startOperator, "starting", "see quickstart.log"},
		{"agent", s.startAgent, "starting", "see agent.log"},
		{"webhook", s.watch, "waiting for the API server to ask the agent", "see agent.log and runtime/kube-apiserver.log"},
	}
}

// interrupted is no failure once everything was shown: ending --serve is what Ctrl-C is for.
func (s *scene) interrupted() error {
	s.report.printf("\nStopping ...\n")

	if s.finished {
		return nil
	}

	return errInterrupted
}

// clear ends what was started. Of a failure, the logs stay.
func (s *scene) clear(failure error) error {
	var errs []error
	for _, end := range slices.Backward(s.closers) {
		errs = append(errs, end())
	}

	if failure == nil || errors.Is(failure, errInterrupted) {
		return errors.Join(append(errs, os.RemoveAll(s.dir))...)
	}

	errs = append(errs, os.RemoveAll(s.keys()), fmt.Errorf("  logs: %s", s.logs))

	return errors.Join(errs...)
}

// keys is where key material is.
func (s *scene) keys() string { return filepath.Join(s.dir, "keys") }
