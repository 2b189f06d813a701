package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/lab"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab" //nolint:depguard // Not released.
)

const (
	first  = "runtime-1"
	second = "runtime-2"
)

// demo plays the story in a lab. A failure of the lab ends the demo.
type demo struct {
	*lab.Lab

	out io.Writer
	// before are the objects of the second runtime before it was registered.
	before []string
	// slack is a factor for the time that each effect may take.
	slack int
	// faults plays another story, in which the operator is killed in each line. Serve waits for the
	// user instead of a story. All plays both stories, and waits for the user then.
	faults, serve, all bool
}

// play prepares the lab, and plays the parts of the flags. Each part begins with registered
// runtimes and without modules.
func (d *demo) play(run *rig.Demo) {
	began := time.Now()
	d.Lab = lab.New(run, lab.Options{
		Dir: run.Dir, Runtimes: []string{first, second}, Replicas: 2, Progress: d,
		// All waits are short, except for waits for events.
		OperatorArgs: []string{
			"-poll-otherwise=3s", "-agent-setting=HEARTBEAT_INTERVAL=1s", "-agent-setting=CANARY_INTERVAL=1s",
		},
	})
	d.printf("Lifecycle manager: a meta operator that runs on events, with two runtimes\n\n")
	d.prepare()

	isDefault := !d.faults && !d.serve
	if d.all || isDefault {
		d.playLines(d.story(), began)
	}

	if d.all || d.faults {
		// Another replica would wait for the end of the lease of a killed one.
		d.faults = true
		d.Reconfigure(1, "-leader-elect=false")
		d.renewRuntimes()
		d.playLines(d.storyOfFaults(), began)
	}

	if d.all {
		d.renewRuntimes()
	}

	if d.all || d.serve {
		d.printAndWait()
	}
}

// prepare starts all programs.
func (d *demo) prepare() {
	for _, stage := range []struct {
		name, result string
		do           func()
	}{
		{"programs", "API server, cert-manager, agent and operator: built from source", d.Build},
		{"API servers", "control plane, " + first + " and " + second, d.StartAPIServers},
		{"cert-manager", "its controllers, in the control plane", d.StartCertManager},
		{"operator", "config/native: certificates, listener, leader", d.deployOperator},
		{"runtimes", "registered; agents and webhooks are there, and both are fresh", d.registerRuntimes},
	} {
		began := time.Now()
		d.printf("  %-13s ", stage.name)
		stage.do()
		d.printf("%-67s %6s\n", stage.result, seconds(time.Since(began)))
	}
}

// playLines plays a story, and fails at the first effect that does not come in time.
func (d *demo) playLines(lines []line, began time.Time) {
	d.printf("\n"+happensFormat+effectFormat, "WHAT HAPPENS", "EFFECT", "AFTER")
	for _, l := range lines {
		d.printf(happensFormat, l.happens)
		l.do()
		changed := time.Now()
		d.crashOperator()

		limit := l.within * time.Duration(d.slack)
		if d.faults {
			limit += prompt // The operator starts.
		}

		rig.Eventually(d.TB, limit, l.happens+": "+l.effect, l.holds)
		d.printf(effectFormat, l.effect, fmt.Sprintf("%.2f s", time.Since(changed).Seconds()))
	}

	d.printSummary(time.Since(began))
}

const happensFormat, effectFormat = "  %-39s ", "%-41s %6s\n"

// printAndWait prints the paths of kubeconfigs, and waits for the end.
func (d *demo) printAndWait() {
	d.printf("\n")
	for name, id := range map[string]string{"KCP": lab.ControlPlane, "SKR": first} {
		d.printf("  export %s=%s\n", name, d.Runtimes[id].Server.Kubeconfig)
	}

	d.printf("  # Continue with examples/lifecyclemanager/GUIDE.md. Ctrl-C ends all.\n")
	<-d.Context().Done()
}

func (d *demo) printf(format string, args ...any) { _, _ = fmt.Fprintf(d.out, format, args...) }

// Write implements [io.Writer], for the progress of a build.
func (d *demo) Write(line []byte) (int, error) {
	d.printf("... %s\n  %-13s ", bytes.TrimSpace(line), "")
	return len(line), nil
}

func seconds(t time.Duration) string { return fmt.Sprintf("%.1f s", t.Seconds()) }

// deployOperator applies config/native and the Watcher of the module, as `kubectl apply -k` does.
func (d *demo) deployOperator() {
	d.Deploy("native")
	d.ApplyFile("samples/keda-watcher.yaml")
}

// registerRuntimes notes the objects of the second runtime, and registers both.
func (d *demo) registerRuntimes() {
	var err error
	d.before, err = d.Runtimes[second].Inventory(d.Context())
	rig.NoError(d, err)
	d.registerBoth()
}

// registerBoth returns when the agents of both runtimes are there. The users of the second one see
// modules that are in beta.
func (d *demo) registerBoth() {
	d.Register(first, nil)
	d.Register(second, map[string]string{v1beta2.BetaLabel: "true"})
	d.Eventually("both runtimes are fresh", func() bool { return d.hasState(first, fleet.Fresh, "") && d.isFresh() })
}

// renewRuntimes makes both runtimes as they were before a story. It plays the garbage collector,
// which the lab does not have: cert-manager would find the requests of former certificates.
func (d *demo) renewRuntimes() {
	d.Runtimes[first].Refuse() // It may be cut already.
	inNamespace := client.InNamespace("kcp-system")
	rig.NoError(d, errors.Join(d.Plane.DeleteAllOf(d.Context(), &v1beta2.ModuleTemplate{}, inNamespace),
		d.Plane.DeleteAllOf(d.Context(), &certv1.CertificateRequest{}, inNamespace), d.Runtimes[first].Open()))
	d.registerBoth()
}

// controllers is the number of controllers of the operator that take events. The fleet has a status
// of each runtime for each of them.
const controllers = 2

// hasState reports whether the fleet has a runtime in a state for both controllers, for a reason or
// none.
func (d *demo) hasState(id string, state fleet.State, reason string) bool {
	return d.forBoth(id, func(s fleet.Status) bool { return s.State == state && string(s.Reason) == reason })
}

// forBoth reports whether a condition holds for the status of a runtime for both controllers.
func (d *demo) forBoth(id string, holds func(fleet.Status) bool) bool {
	known, err := d.Fleet(d.Context(), id)
	if err != nil || len(known) != controllers {
		return false
	}

	return !slices.ContainsFunc(known, func(s fleet.Status) bool { return !holds(s) })
}

// printSummary prints why the operator has reconciled.
func (d *demo) printSummary(took time.Duration) {
	d.printf("\nAll effects are as expected, after %s. The reconciles by cause:\n\n", seconds(took))
	causes := []string{"local", "event", "resync", "freshness", "poll", "retry"}

	d.printf("  %-18s", "")
	for _, cause := range causes {
		d.printf(" %10s", cause)
	}

	for _, controller := range []string{"lifecycle-manager", "module-manager"} {
		d.printf("\n  %-18s", controller)
		for _, cause := range causes {
			d.printf(" %10d", d.Reconciles(d.Context(), controller, cause))
		}
	}

	d.printf("\n")
}
