package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/lab"
)

const (
	first  = "runtime-1"
	second = "runtime-2"
	// patience is the limit for a stage of the preparation.
	patience = 15 * time.Minute
)

// demo plays the story in a lab.
type demo struct {
	*lab.Lab

	out   io.Writer
	slack int
	// before are the objects of the second runtime before it was registered.
	before []string
}

func newDemo(out io.Writer, slack int) *demo { return &demo{out: out, slack: slack} }

// play prepares the lab, plays the story, and ends everything. The logs of a failure stay.
func (d *demo) play(ctx context.Context) (err error) {
	began := time.Now()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme),
		certv1.AddToScheme(scheme), watcher.AddToScheme(scheme), v1beta2.AddToScheme(scheme)); err != nil {
		return err
	}
	d.Lab, err = lab.New(lab.Options{
		Scheme: scheme, Runtimes: []string{first, second}, Replicas: 2, OperatorArgs: operatorArgs(),
		Progress: func(line string) { d.printf("                ... %s\n", line) },
	})
	if err != nil {
		return err
	}
	defer func() {
		keep := err != nil && ctx.Err() == nil
		err = errors.Join(err, d.Close(keep))
		if keep {
			err = fmt.Errorf("%w\n  logs: %s/logs", err, d.Dir)
		}
	}()
	d.printf("Lifecycle manager: a meta operator that runs on events, with two runtimes\n\n")
	if err := d.prepare(ctx); err != nil {
		return err
	}
	if err := d.tell(ctx); err != nil {
		return err
	}
	return d.summary(ctx, time.Since(began))
}

// operatorArgs make everything but the events faster: they are waits that nobody wants to watch.
func operatorArgs() []string {
	return []string{
		"-poll-otherwise=3s", "-agent-setting=HEARTBEAT_INTERVAL=1s", "-agent-setting=CANARY_INTERVAL=1s",
	}
}

// prepare starts all programs.
func (d *demo) prepare(ctx context.Context) error {
	stages := []struct {
		name, result string
		do           func(context.Context) error
	}{
		{"programs", "API server, cert-manager, agent and operator: built from source", d.Build},
		{"API servers", "control plane, " + first + " and " + second, d.StartAPIServers},
		{"cert-manager", "its controllers, in the control plane", d.StartCertManager},
		{"operator", "config/native: two replicas, of which one leads", d.deploy},
		{"runtimes", "registered; agents and webhooks are there, and both are fresh", d.register},
	}
	for _, stage := range stages {
		began := time.Now()
		limited, cancel := context.WithTimeoutCause(ctx, patience, errors.New("too slow"))
		err := stage.do(limited)
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", stage.name, err)
		}
		d.printf("  %-13s %-66s %6s\n", stage.name, stage.result, seconds(time.Since(began)))
	}
	return nil
}

func (d *demo) printf(format string, args ...any) { _, _ = fmt.Fprintf(d.out, format, args...) }

func seconds(t time.Duration) string { return fmt.Sprintf("%.1f s", t.Seconds()) }
