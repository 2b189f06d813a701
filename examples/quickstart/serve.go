package main

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"
)

const byHand = `
Everything goes on running. In another terminal:

  export KUBECONFIG=%[1]s/runtime.kubeconfig%[2]s
  kubectl create -f %[1]s/demo.yaml
  kubectl set image deployment demo app=app:v2                    # the spec: a reconcile
  kubectl annotate deployment demo note=hello                     # only metadata: none
  kubectl set image deployment demo app=app:v3 --dry-run=server   # a dry run: none
  kubectl delete deployment demo

  kubectl --kubeconfig=%[1]s/control-plane.kubeconfig get runtimes
  curl -s http://%[3]s/metrics | grep ^runtime_watcher_agent_events
  tail -f %[1]s/logs/agent.log

What happens meanwhile (Ctrl-C ends it):

`

// serve tells what can be done by hand, and shows what comes of it, until ctx ends.
func (s *scene) serve(ctx context.Context) error {
	if err := writeManifest(filepath.Join(s.dir, "demo.yaml")); err != nil {
		return err
	}

	s.report.printf(byHand, s.dir, s.kubectl(), s.agent.metrics())
	s.diary.follow(func(where, what string) {
		s.report.printf("  %s  %-9s %s\n", time.Now().Format("15:04:05.000"), where, what)
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

// kubectl returns a line that brings the kubectl which was built into the PATH, where there is none.
func (s *scene) kubectl() string {
	if !s.buildsKubectl() {
		return ""
	}

	return "\n  export PATH=$PATH:" + s.assets
}
