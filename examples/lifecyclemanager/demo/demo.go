package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine" //nolint:depguard // Not released.
)

const (
	first  = "runtime-1"
	second = "runtime-2"
	// buildTime is the limit for the first build, and patience that for each other stage of the
	// preparation.
	buildTime = 15 * time.Minute
	patience  = 2 * time.Minute
)

// demo plays the story in a lab.
type demo struct {
	*lab.Lab

	out io.Writer
	// before are the objects of the second runtime before it was registered.
	before []string
	// slack is a factor for the time that each effect may take. Twenty doubles that of the
	// preparation.
	slack int
	// faults plays another story, in which the operator is killed in each line. Serve waits for the
	// user instead of a story. All plays both stories, and waits for the user then.
	faults, serve, all bool
}

// play prepares the lab, plays the story, and ends everything. The logs of a failure stay.
func (d *demo) play(ctx context.Context) (err error) {
	began := time.Now()
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	d.Lab, err = lab.New(lab.Options{
		Scheme: scheme, Runtimes: []string{first, second}, Replicas: 2, OperatorArgs: operatorArgs(),
		Progress: d,
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
	return d.playParts(ctx, began)
}

// playParts plays the parts of the flags. Each part begins with registered runtimes and without
// modules.
func (d *demo) playParts(ctx context.Context, began time.Time) error {
	if d.all || !d.faults && !d.serve {
		if err := d.playLines(ctx, d.story(), began); err != nil {
			return err
		}
	}
	if d.all || d.faults {
		// Another replica would wait for the end of the lease of a killed one.
		d.faults = true
		if err := errors.Join(d.Reconfigure(ctx, 1, "-leader-elect=false"), d.renew(ctx)); err != nil {
			return err
		}
		if err := d.playLines(ctx, d.storyOfFaults(), began); err != nil {
			return err
		}
	}
	if d.all {
		if err := d.renew(ctx); err != nil {
			return err
		}
	}
	if d.all || d.serve {
		d.wait(ctx)
	}
	return nil
}

// newScheme returns the kinds of all clients.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, errors.Join(clientgoscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme),
		certv1.AddToScheme(scheme), watcher.AddToScheme(scheme), v1beta2.AddToScheme(scheme))
}

// operatorArgs shorten all waits except for those of events.
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
		limit        time.Duration
	}{
		{"programs", "API server, cert-manager, agent and operator: built from source", d.Build, buildTime},
		{"API servers", "control plane, " + first + " and " + second, d.StartAPIServers, patience},
		{"cert-manager", "its controllers, in the control plane", d.StartCertManager, patience},
		{"operator", "config/native: certificates, listener, leader", d.deploy, patience},
		{"runtimes", "registered; agents and webhooks are there, and both are fresh", d.register, patience},
	}
	for _, stage := range stages {
		began := time.Now()
		d.printf("  %-13s ", stage.name)
		limited, cancel := d.limited(ctx, stage.limit)
		err := stage.do(limited)
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", stage.name, err)
		}
		d.printf("%-66s %6s\n", stage.result, seconds(time.Since(began)))
	}
	return nil
}

// limited bounds a part of the preparation.
func (d *demo) limited(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit*time.Duration(20+d.slack)/20, errors.New("too slow"))
}

// playLines plays a story, and fails at the first effect that does not come in time.
func (d *demo) playLines(ctx context.Context, lines []line, began time.Time) error {
	d.printf("\n"+happensFormat+effectFormat, "WHAT HAPPENS", "EFFECT", "AFTER")
	for _, l := range lines {
		d.printf(happensFormat, l.happens)
		took, err := d.play1(ctx, l)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", l.happens, l.effect, err)
		}
		d.printf(effectFormat, l.effect, fmt.Sprintf("%.2f s", took.Seconds()))
	}
	return d.summary(ctx, time.Since(began))
}

const happensFormat, effectFormat = "  %-38s ", "%-41s %6s\n"

// wait prints the paths of kubeconfigs, and waits for the end.
func (d *demo) wait(ctx context.Context) {
	d.printf("\n")
	for name, id := range map[string]string{"KCP": lab.ControlPlane, "SKR": first} {
		d.printf("  export %s=%s\n", name, d.Runtimes[id].Kubeconfig())
	}
	d.printf("  # Continue with examples/lifecyclemanager/GUIDE.md. Ctrl-C ends all.\n")
	<-ctx.Done()
}

func (d *demo) printf(format string, args ...any) { _, _ = fmt.Fprintf(d.out, format, args...) }

// Write implements [io.Writer], for the progress of a build.
func (d *demo) Write(line []byte) (int, error) {
	d.printf("... %s\n  %-13s ", bytes.TrimSpace(line), "")
	return len(line), nil
}

func seconds(t time.Duration) string { return fmt.Sprintf("%.1f s", t.Seconds()) }

// deploy applies config/native and the Watcher of the module, as `kubectl apply -k` does.
func (d *demo) deploy(ctx context.Context) error {
	objects, err := lab.Kustomize("native")
	if err != nil {
		return err
	}
	if err := d.Deploy(ctx, objects); err != nil {
		return err
	}
	return d.ApplyFile(ctx, "samples/keda-watcher.yaml")
}

// register notes the objects of the second runtime, and registers both.
func (d *demo) register(ctx context.Context) (err error) {
	if d.before, err = d.Runtimes[second].Inventory(ctx); err != nil {
		return err
	}
	return d.registerBoth(ctx)
}

// registerBoth returns when the agents of both runtimes are there. The users of the second one see
// modules that are in beta.
func (d *demo) registerBoth(ctx context.Context) error {
	beta := map[string]string{v1beta2.BetaLabel: "true"}
	if err := errors.Join(d.Register(ctx, first, nil), d.Register(ctx, second, beta)); err != nil {
		return err
	}
	return machine.Poll(ctx, func() bool { return d.is(ctx, first, "fresh", "") && d.isFresh(ctx) })
}

// renew makes both runtimes as they were before a story. It plays the garbage collector, which the
// lab does not have: cert-manager would find the requests of former certificates.
func (d *demo) renew(ctx context.Context) error {
	ctx, cancel := d.limited(ctx, patience)
	defer cancel()
	d.Runtimes[first].Cut() // It may be cut already.
	inNamespace := client.InNamespace("kcp-system")
	return errors.Join(d.Plane.DeleteAllOf(ctx, &v1beta2.ModuleTemplate{}, inNamespace),
		d.Plane.DeleteAllOf(ctx, &certv1.CertificateRequest{}, inNamespace),
		d.Runtimes[first].Restore(), d.registerBoth(ctx))
}

// is reports whether the fleet has a runtime in a state for both controllers, for a reason or none.
func (d *demo) is(ctx context.Context, id, state, reason string) bool {
	fleet, err := d.Fleet(ctx, id)
	return err == nil && len(fleet) == 2 && !slices.ContainsFunc(fleet, func(f lab.Freshness) bool {
		return f.State != state || f.Reason != reason
	})
}

// summary prints why the operator has reconciled.
func (d *demo) summary(ctx context.Context, took time.Duration) error {
	counts, err := d.Reconciles(ctx)
	if err != nil {
		return err
	}
	d.printf("\nAll effects are as expected, after %s. The reconciles by cause:\n\n", seconds(took))
	causes := []string{"local", "event", "resync", "freshness", "poll", "retry"}
	d.printf("  %-18s", "")
	for _, cause := range causes {
		d.printf(" %10s", cause)
	}
	for _, controller := range []string{"lifecycle-manager", "module-manager"} {
		d.printf("\n  %-18s", controller)
		for _, cause := range causes {
			d.printf(" %10d", counts[[2]string{controller, cause}])
		}
	}
	d.printf("\n")
	return nil
}
