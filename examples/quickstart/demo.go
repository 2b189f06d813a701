package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab"           //nolint:depguard // Not released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver" //nolint:depguard // Not released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"   //nolint:depguard // Not released.
)

// patience is the limit for one step on a busy machine.
const patience = 2 * time.Minute

// demo contains two clusters and the programs in them. If a program fails, the demo ends.
type demo struct {
	*lab.Demo

	settings settings
	report   *report
	journal  journal
	started  time.Time
	// stage is in progress.
	stage stage

	assets       string
	pki          *lab.PKI
	controlPlane *apiserver.ControlPlane
	remotes      []*remote
	operator     *operator
	broker       *broker
	// pageAddr is the address of the page with --serve.
	pageAddr string
}

// stage is a step of the preparation.
type stage struct {
	name string
	// prepare returns a description of the result.
	prepare func() string
	// next is the advice after a failure.
	next string
}

// play makes all stages and steps.
func (d *demo) play(run *lab.Demo) {
	d.Demo = run
	d.pki = lab.NewPKI(run)
	d.remotes = []*remote{{demo: d, name: runtimeName}}

	how := "contract " + string(d.settings.contract)
	if d.settings.nats {
		how += ", through NATS"
	}

	if d.settings.serve {
		d.remotes = append(d.remotes, &remote{demo: d, name: neighbour})
	}

	d.report.printf("Runtime Watcher: a change in a runtime starts a reconcile in the control plane (%s)\n\n", how)
	for _, d.stage = range d.stages() {
		began := time.Now()
		d.report.printf(stageFormat, d.stage.name, d.stage.prepare(), seconds(time.Since(began)))
	}

	d.playSteps()
	if d.settings.serve {
		d.serveUntilDone()
		return
	}

	d.report.printf("Try it by hand: make demo ARGS=--serve\n")
}

// stages returns the stages in their order. Each needs those before it.
func (d *demo) stages() []stage {
	all := []stage{
		{"programs", d.buildPrograms, "see README.md, and run it again"},
		{"API servers", d.startAPIServers, "see the logs; they need 1 GB of memory together"},
		{"certificates", d.issueCertificates, "see whether the disk is full"},
		{"operator", d.startOperator, "see quickstart.log"},
		{"agent", d.remotes[0].startAgent, "see agent.log"},
		{"webhook", d.remotes[0].registerWebhook, "see agent.log and runtime-1/kube-apiserver.log"},
	}
	if d.settings.nats {
		const beforeOperator = 3
		return slices.Insert(all, beforeOperator, stage{"NATS server", d.startBroker, "see its log"})
	}
	return all
}

// buildPrograms builds missing or outdated programs. The first build takes minutes.
func (d *demo) buildPrograms() string {
	_, missing := exec.LookPath("kubectl")
	builds := d.settings.serve && missing != nil && os.Getenv(apiserver.AssetsEnv) == ""

	var err error
	d.assets, err = apiserver.Assets(d.Context(), apiserver.AssetsOptions{Kubectl: builds, Progress: d.report})
	lab.NoError(d, err)

	fmt.Fprintln(d.report, "building cmd/agent")
	lab.Build(d, "cmd/agent")

	version, err := exec.CommandContext(d.Context(), filepath.Join(d.assets, "kube-apiserver"), "--version").Output()
	lab.NoError(d, err)
	name := strings.TrimPrefix(strings.TrimSpace(string(version)), "Kubernetes ")
	return fmt.Sprintf("kube-apiserver %s and its etcd, agent: built from source", name)
}

// startAPIServers starts all clusters concurrently, and registers the runtimes.
func (d *demo) startAPIServers() string {
	root, err := machine.Repository()
	lab.NoError(d, err)

	all := []apiserver.Options{d.clusterOptions("control-plane")}
	all[0].CRDPaths = []string{filepath.Join(root, "examples", "quickstart", "runtimes.yaml")}
	for _, r := range d.remotes {
		all = append(all, d.clusterOptions(r.name))
	}

	clusters := apiserver.StartAllT(d, all...)
	d.controlPlane = clusters[0]
	for i, r := range d.remotes {
		r.cluster = clusters[1+i]
	}

	for _, name := range registered() {
		lab.NoError(d, d.controlPlane.Client.Create(d.Context(), newRuntime(name)))
	}

	return "control plane at " + host(d.controlPlane) + ", runtime at " + host(d.remotes[0].cluster)
}

func (d *demo) clusterOptions(name string) apiserver.Options {
	logs := d.LogFile(name)
	lab.NoError(d, os.Mkdir(logs, 0o700))
	return apiserver.Options{
		KubeconfigPath: filepath.Join(d.Dir, name+".kubeconfig"), LogDir: logs, Logger: d.Logger,
	}
}

func host(cluster *apiserver.ControlPlane) string {
	return strings.TrimSuffix(cluster.Config.Host, "/")
}

// issueCertificates issues one certificate for each runtime. The certificate identifies the runtime
// and its webhook. In production, use cert-manager.
func (d *demo) issueCertificates() string {
	folder := filepath.Join(d.Dir, "keys")
	lab.NoError(d, os.Mkdir(folder, 0o700))

	for _, r := range d.remotes {
		r.secret = d.pki.RuntimeVolume(r.name, domainOf(r.name))
		lab.NoError(d, os.Symlink(r.secret.Path(""), filepath.Join(folder, r.name)))
	}

	return fmt.Sprintf("of a throw-away CA, for %s with the domain %s", runtimeName, domainOf(runtimeName))
}

// failsWith makes the end of a process the failure of the demo.
func (d *demo) failsWith(process *lab.Process, name, log string) {
	go func() {
		select {
		case <-process.Exited():
			d.Errorf("%s ended: %s; see %s", name, process.State(), log)
		case <-d.Context().Done():
		}
	}()
}

func (d *demo) await(what string, condition func() bool) {
	lab.Eventually(d, patience, what, condition)
}
