package main

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"
)

const byHand = `
All programs continue to run. In another terminal:

  export KUBECONFIG=%[1]s/runtime.kubeconfig%[2]s
  kubectl create -f %[1]s/demo.yaml
  kubectl set image deployment demo app=app:v2                    # the spec: a reconcile
  kubectl annotate deployment demo note=hello                     # only metadata: none
  kubectl set image deployment demo app=app:v3 --dry-run=server   # a dry run: none
  kubectl delete deployment demo

  kubectl --kubeconfig=%[1]s/control-plane.kubeconfig get runtimes
  curl -s http://%[3]s/metrics | grep ^runtime_watcher_agent_events
  tail -f %[1]s/logs/agent.log

Decisions, deliveries and reconciles (Ctrl-C ends it):

`

// serve prints commands to try, and then each entry of the journal until ctx ends.
func (d *demo) serve(ctx context.Context) error {
	if err := writeManifest(filepath.Join(d.dir, "demo.yaml")); err != nil {
		return err
	}
	d.report.printf(byHand, d.dir, d.kubectl(), d.agent.metrics())
	d.journal.follow(func(where, text string) {
		d.report.printf("  %s  %-9s %s\n", time.Now().Format("15:04:05.000"), where, text)
	})
	<-ctx.Done()
	return nil
}

func writeManifest(path string) error {
	text, err := yaml.Marshal(newDeployment(1))
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// kubectl returns a line that adds the built kubectl to the PATH, unless there is another one.
func (d *demo) kubectl() string {
	if !d.buildsKubectl() {
		return ""
	}
	return "\n  export PATH=$PATH:" + d.assets
}
