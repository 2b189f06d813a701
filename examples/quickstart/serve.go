package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener/statuspage"
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine" //nolint:depguard // Not released.
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
fleet() { curl -s -u any:drill "http://%[3]s/fleet?brief=true"; }
`

// serve starts the agent of the second runtime, prints commands to try, and then each entry of the
// journal until ctx ends.
func (d *demo) serve(ctx context.Context) error {
	second := d.remotes[1]
	if _, err := second.startAgent(ctx); err != nil {
		return fmt.Errorf("the agent of %s: %w", neighbour, err)
	}
	if _, err := second.watch(ctx); err != nil {
		return fmt.Errorf("the webhook of %s: %w", neighbour, err)
	}
	if err := d.writeGround(); err != nil {
		return err
	}
	d.report.printf(byHand, d.dir, d.pageAddr, d.remotes[0].agent.metrics)
	d.journal.follow(func(where, text string) {
		d.report.printf("  %s  %-9s %s\n", time.Now().Format("15:04:05.000"), where, text)
	})
	<-ctx.Done()
	return nil
}

// page returns the settings of the metrics server of the operator. With --serve it has the page of
// the fleet. Elsewhere, serve it with TLS and the rights of Kubernetes.
func (d *demo) page(ctx context.Context, watched *fleet.Fleet) (metricsserver.Options, error) {
	if !d.settings.serve {
		return metricsserver.Options{BindAddress: "0"}, nil
	}
	d.pageAddr = net.JoinHostPort("127.0.0.1", strconv.Itoa(d.settings.port))
	if d.settings.port == 0 {
		var err error
		if d.pageAddr, err = machine.FreeAddress(ctx); err != nil {
			return metricsserver.Options{}, err
		}
	}
	handler := statuspage.RequireToken(func() string { return "drill" }, statuspage.FleetHandler(watched))
	served := map[string]http.Handler{"/fleet": handler}
	return metricsserver.Options{BindAddress: d.pageAddr, ExtraHandlers: served}, nil
}

// writeGround writes the files that the commands of the drills need.
func (d *demo) writeGround() error {
	path := func(name string) string { return filepath.Join(d.dir, name) }
	if err := os.WriteFile(path("env"), fmt.Appendf(nil, env, d.dir, d.assets, d.pageAddr), 0o600); err != nil {
		return err
	}
	return writeManifest(path("demo.yaml"), newDeployment(1))
}

func writeManifest(path string, object client.Object) error {
	text, err := yaml.Marshal(object)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}
