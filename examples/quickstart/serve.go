package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener/statuspage"
	"github.com/runtime-watcher/runtime-watcher/test/lab" //nolint:depguard // Not released.
)

const byHand = `
All programs continue to run. The page of the fleet: http://%[2]s/fleet (any user, password drill)
In another terminal, and then the drills of docs/operations/drills.md:

  . %[1]s/env
  k1 create -f $D/demo.yaml
  k1 set image deployment demo app=app:v2                    # the spec: a reconcile
  k1 annotate deployment demo note=hello                     # only metadata: none
  k1 set image deployment demo app=app:v3 --dry-run=server   # a dry run: none
  k1 delete deployment demo
  kcp get runtimes
  fleet
  curl -s http://%[3]s/metrics | grep ^runtime_watcher_agent_events
  tail -f $D/logs/agent.log

Decisions, deliveries and reconciles (Ctrl-C ends it):

`

// env has short names for the commands of the drills.
const env = `D=%[1]s
PATH=$PATH:%[2]s
k1() { kubectl --kubeconfig=$D/runtime-1.kubeconfig "$@"; }
k2() { kubectl --kubeconfig=$D/runtime-2.kubeconfig "$@"; }
kcp() { kubectl --kubeconfig=$D/control-plane.kubeconfig "$@"; }
fleet() { curl -s -u any:drill "http://%[3]s/${1:-fleet?brief=true}"; }
`

// serveUntilDone starts the agent of the second runtime, prints commands to try, and then each
// entry of the journal until ctx ends.
func (d *demo) serveUntilDone() {
	d.stage = stage{name: neighbour, next: "see runtime-2-agent.log"}
	d.remotes[1].startAgent()
	d.remotes[1].registerWebhook()
	d.writeGround()
	d.report.printf(byHand, d.Dir, d.pageAddr, lab.Address(d.remotes[0].agent.MetricsPort))
	d.journal.follow(func(where, text string) {
		d.report.printf("  %s  %-9s %s\n", time.Now().Format("15:04:05.000"), where, text)
	})
	<-d.Context().Done()
}

// metricsOptions returns the settings of the metrics server of the operator. With --serve it has
// the page of the fleet. Elsewhere, serve it with TLS and the rights of Kubernetes.
func (d *demo) metricsOptions(watched *fleet.Fleet) metricsserver.Options {
	if !d.settings.serve {
		return metricsserver.Options{BindAddress: "0"}
	}

	d.pageAddr = lab.Address(d.settings.port)
	if d.settings.port == 0 {
		d.pageAddr = lab.Address(lab.FreePort(d))
	}

	handler := statuspage.RequireToken(func() string { return "drill" }, statuspage.FleetHandler(watched))
	served := map[string]http.Handler{"/fleet": handler}
	return metricsserver.Options{BindAddress: d.pageAddr, ExtraHandlers: served}
}

// writeGround writes the files that the commands of the drills need.
func (d *demo) writeGround() {
	d.writeFile("env", fmt.Appendf(nil, env, d.Dir, d.assets, d.pageAddr))
	d.writeFile("keys/api-server.crt", d.remotes[0].cluster.Config.CAData)
	d.writeManifest("demo.yaml", newDeployment(1))
}

func (d *demo) writeManifest(name string, object client.Object) {
	text, err := yaml.Marshal(object)
	lab.NoError(d, err)
	d.writeFile(name, text)
}

// writeFile writes a file of the demo.
func (d *demo) writeFile(name string, text []byte) {
	lab.NoError(d, os.WriteFile(filepath.Join(d.Dir, name), text, 0o600))
}
