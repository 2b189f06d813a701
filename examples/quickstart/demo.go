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
	"k8s.io/klog/v2" //nolint:depguard // client-go would log to the terminal.
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver" //nolint:depguard // Not released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"   //nolint:depguard // Not released.
)

// patience is the limit for one step on a busy machine.
const patience = 2 * time.Minute

// demo has two clusters and the programs in them.
type demo struct {
	settings settings
	report   *report
	journal  journal
	started  time.Time
	// fail ends the demo with an error.
	fail context.CancelCauseFunc

	// dir is private to this run. It has key material, kubeconfigs, and logs as a folder.
	dir, logs string
	log       *slog.Logger
	// finished means that all steps succeeded.
	finished bool

	assets, agentBinary string
	brokerBinary        string
	controlPlane        *apiserver.ControlPlane
	remotes             []*remote
	pki                 *pki
	operator            *operator
	broker              *broker
	// pageAddr is the address of the page with --serve.
	pageAddr string

	// closers end the started programs, in reverse order.
	closers []func() error
}

func newDemo(settings settings, report *report) (*demo, error) {
	dir, err := os.MkdirTemp("", "runtime-watcher-quickstart-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for this run: %w; TMPDIR may name another one", err)
	}
	d := &demo{settings: settings, report: report, started: time.Now(), dir: dir, logs: filepath.Join(dir, "logs")}
	d.remotes = []*remote{{demo: d, name: runtimeName, domain: runtimeDomain}}
	if settings.serve {
		d.remotes = append(d.remotes, &remote{demo: d, name: neighbour, domain: neighbourDomain})
	}
	if err := d.openLog(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return d, nil
}

// openLog sends the logs of libraries to a file.
func (d *demo) openLog() error {
	if err := os.Mkdir(d.logs, 0o700); err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(d.logs, "quickstart.log"))
	if err != nil {
		return err
	}
	d.closers = append(d.closers, file.Close)
	d.log = slog.New(slog.NewTextHandler(file, nil))
	log.SetLogger(logr.FromSlogHandler(d.log.Handler()))
	klog.SetSlogLogger(d.log)
	return nil
}

// play makes all stages and steps.
func (d *demo) play(ctx context.Context) error {
	how := "contract " + string(d.settings.contract)
	if d.settings.nats {
		how += ", through NATS"
	}
	d.report.printf("Runtime Watcher: a change in a runtime starts a reconcile in the control plane (%s)\n\n", how)
	for _, stage := range d.stages() {
		began := time.Now()
		result, err := stage.prepare(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w\n  next: %s", stage.name, err, stage.next)
		}
		d.report.printf(stageFormat, stage.name, result, seconds(time.Since(began)))
	}
	if err := d.playSteps(ctx); err != nil {
		return err
	}
	d.finished = true
	if d.settings.serve {
		return d.serve(ctx)
	}
	d.report.printf("Try it by hand: make demo ARGS=--serve\n")
	return nil
}

// stage is a step of the preparation.
type stage struct {
	name string
	// prepare returns a description of the result.
	prepare func(context.Context) (string, error)
	// next is the advice after a failure.
	next string
}

// stages returns the stages in their order. Each needs those before it.
func (d *demo) stages() []stage {
	all := []stage{
		{"programs", d.build, "see README.md, and run it again"},
		{"API servers", d.startAPIServers, "see the logs; they need 1 GB of memory together"},
		{"certificates", d.issueCertificates, "see whether the disk is full"},
		{"operator", d.startOperator, "see quickstart.log"},
		{"agent", d.remotes[0].startAgent, "see agent.log"},
		{"webhook", d.remotes[0].watch, "see agent.log and runtime/kube-apiserver.log"},
	}
	if d.settings.nats {
		const beforeOperator = 3
		server := stage{"NATS server", d.startBroker, "see nats.log"}
		return slices.Insert(all, beforeOperator, server)
	}
	return all
}

// interrupted returns [machine.ErrInterrupted] before the last step. Afterwards it returns nil, as
// Ctrl-C ends --serve.
func (d *demo) interrupted() error {
	d.report.printf("\nStopping ...\n")
	if d.finished {
		return nil
	}
	return machine.ErrInterrupted
}

// clear ends all programs and removes all files, except for the logs of a failure.
func (d *demo) clear(failure error) error {
	var errs []error
	for _, end := range slices.Backward(d.closers) {
		errs = append(errs, end())
	}
	if failure == nil || errors.Is(failure, machine.ErrInterrupted) {
		return errors.Join(append(errs, os.RemoveAll(d.dir))...)
	}
	errs = append(errs, os.RemoveAll(d.keys()), fmt.Errorf("  logs: %s", d.logs))
	return errors.Join(errs...)
}

// keys returns the folder with key material.
func (d *demo) keys() string { return filepath.Join(d.dir, "keys") }
