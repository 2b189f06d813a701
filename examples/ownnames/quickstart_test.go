package main

import (
	"bytes"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager"
	"github.com/runtime-watcher/runtime-watcher/test/lab/node"
)

const quickStart = "docs/guide/quick-start.md"

// ofKind has how commands of the page begin that need kind, Docker or a download, and what does
// their work here.
var ofKind = map[string]string{
	"kind create cluster":                            "two API servers and nodes",
	"kind delete clusters":                           "the end of the test",
	"make kind-load":                                 "lab.Build makes the same programs",
	"kubectl --context kind-fleet apply -f https://": "cert-manager's controllers beside the API server",
}

// guided is the world of the page: kind's two clusters.
type guided struct {
	*testing.T

	dir         string // has a kubeconfig with the contexts of kind
	fleet, blue *node.Node
}

// TestQuickStart runs each command of the page, in its order, with the rights and the manifests of
// the page. API servers and processes are real. Only kind and Docker are missing.
func TestQuickStart(t *testing.T) {
	lab.SkipShort(t)
	g := newGuided(t)
	used := map[string]bool{}
	all := commands(t)
	for _, command := range all {
		if begins := beginning(command); begins != "" {
			used[begins] = true
			continue
		}
		if strings.Contains(command, " logs ") {
			continue // By the command before, which is a change.
		}

		before := g.reconciles()
		g.run(command)
		if strings.Contains(command, "setting.yaml") {
			lab.Eventually(t, lab.Patience, "the change reconciles blue", func() bool { return g.reconciles() > before })
		}
	}

	if n := len(all); n != 15 {
		t.Errorf("%d commands, and the page says 15", n)
	}
	for begins := range ofKind {
		if !used[begins] {
			t.Errorf("no command begins with %q", begins)
		}
	}
	if left := g.run("kubectl --context kind-blue get all,validatingwebhookconfigurations -A -o name"); strings.Contains(left, "runtime-watcher") {
		t.Errorf("the removal leaves\n%s", left)
	}
}

// TestQuickStartInOtherClusters checks the two commands for clusters that exist, without kind.
func TestQuickStartInOtherClusters(t *testing.T) {
	t.Parallel()
	_, others := parts(t)
	all := commandsIn(others)
	if len(all) != 2 {
		t.Fatalf("%d commands, want 2: %q", len(all), all)
	}

	// Child processes read these files, which go test would not notice.
	test.Read(t, "Makefile")
	test.Read(t, "examples/ownnames/config/operator.yaml")
	run := func(command string) string {
		cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", command)
		cmd.Dir = test.Root()
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		return string(out)
	}
	load := run(strings.Replace(all[0], "make ", "make --dry-run ", 1))
	lab.Says(t, "make kind-load", load, "--name 'edge'", "docker-image ownnames:dev --name 'plane'")

	edit, _, _ := strings.Cut(all[1], " | ")
	manifests := run(edit)
	lab.Says(t, edit, manifests, `"-address=plane-control-plane:30443"`)
	if strings.Contains(manifests, "fleet-control-plane") {
		t.Errorf("%s leaves the node of another cluster:\n%s", edit, manifests)
	}
}

// parts returns the page up to the removal, and the part for other clusters.
func parts(t *testing.T) (steps, others string) {
	t.Helper()
	steps, others, found := strings.Cut(string(test.Read(t, quickStart)), "\n## Your own clusters")
	if !found {
		t.Fatalf("%s has no part for other clusters", quickStart)
	}
	return steps, others
}

// commandsIn returns the commands of a text. Each is one line.
func commandsIn(text string) (all []string) {
	for _, block := range regexp.MustCompile("(?ms)^```sh\n(.*?)\n```$").FindAllStringSubmatch(text, -1) {
		all = append(all, strings.Split(strings.TrimSpace(block[1]), "\n")...)
	}
	return all
}

// commands returns the commands of the steps.
func commands(t *testing.T) []string {
	t.Helper()
	page, _ := parts(t)
	all := commandsIn(page)

	version := regexp.MustCompile(`cert-manager/cert-manager (v\S+)`).FindStringSubmatch(string(test.Read(t, "controlplane/go.mod")))
	if !strings.Contains(page, "/"+version[1]+"/cert-manager.yaml") {
		t.Errorf("the page installs another cert-manager than %s, which is tested", version[1])
	}
	return all
}

func beginning(command string) string {
	for begins := range ofKind {
		if strings.HasPrefix(command, begins) {
			return begins
		}
	}
	return ""
}

func newGuided(t *testing.T) *guided {
	t.Helper()
	g := &guided{T: t, dir: t.TempDir()}
	events := lab.Address(lab.FreePort(t))

	// In kind, a node resolves the names of the other nodes.
	g.blue = node.New(t, node.Options{
		Images:   map[string]string{"runtime-watcher/agent:dev": lab.Build(t, "cmd/agent")},
		ImageEnv: map[string][]string{"runtime-watcher/agent:dev": {"CANARY_INTERVAL=1s", "HEARTBEAT_INTERVAL=1s"}},
		Hosts:    map[string]string{"fleet-control-plane:30443": events},
	})
	blue := apiserver.StartT(t, apiserver.Options{APIServerArgs: g.blue.APIServerArgs()})
	runtime := lab.Must(url.Parse(blue.Config.Host))
	g.fleet = node.New(t, node.Options{
		Images:    map[string]string{"ownnames:dev": lab.Build(t, "examples/ownnames")},
		Hosts:     map[string]string{"blue-control-plane:6443": runtime.Host},
		NodePorts: map[int32]string{30443: events},
	})
	fleet := apiserver.StartT(t, apiserver.Options{APIServerArgs: g.fleet.APIServerArgs()})
	g.blue.Start(blue)
	g.fleet.Start(fleet)
	certmanager.StartT(t, fleet.Kubeconfig, certmanager.Options{})
	g.writeKubeconfigs(map[string]*apiserver.ControlPlane{"kind-fleet": fleet, "kind-blue": blue})
	return g
}

// writeKubeconfigs writes the contexts of kind, and the file that kind prints for other nodes.
func (g *guided) writeKubeconfigs(planes map[string]*apiserver.ControlPlane) {
	g.Helper()
	all := clientcmdapi.NewConfig()
	for name, plane := range planes {
		its := lab.Must(clientcmd.LoadFromFile(plane.Kubeconfig))
		current := its.Contexts[its.CurrentContext]
		all.Clusters[name] = its.Clusters[current.Cluster]
		all.AuthInfos[name] = its.AuthInfos[current.AuthInfo]
		all.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
		if name != "kind-blue" {
			continue
		}

		inside := its.DeepCopy()
		inside.Clusters[current.Cluster].Server = "https://blue-control-plane:6443"
		inside.Clusters[current.Cluster].TLSServerName = "localhost" // The certificates of kind have the name of the node.
		lab.NoError(g, clientcmd.WriteToFile(*inside, filepath.Join(g.dir, "inside")))
		lab.NoError(g, os.WriteFile(filepath.Join(g.dir, "kind"), []byte("#!/bin/sh\n"+
			"test \"$*\" = 'get kubeconfig --internal --name blue' && exec cat '"+g.dir+"/inside'\n"), 0o700))
	}
	lab.NoError(g, clientcmd.WriteToFile(*all, filepath.Join(g.dir, "kubeconfig")))
}

// run runs a command at the root of the repository.
func (g *guided) run(command string) string {
	g.Helper()
	assets := lab.Must(apiserver.Assets(g.Context(), apiserver.AssetsOptions{Kubectl: true}))
	cmd := exec.CommandContext(g.Context(), "sh", "-eu", "-c", command)
	cmd.Dir = test.Root()
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(g.dir, "kubeconfig"), "PATH="+g.dir+":"+assets+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		g.Fatalf("%s: %v\n%s\nlog of the operator:\n%s", command, err, out, g.log())
	}
	g.Logf("%s\n%s", command, out)
	return string(out)
}

func (g *guided) log() []byte {
	return g.fleet.Log(types.NamespacedName{Namespace: "fleet", Name: "operator"})
}

func (g *guided) reconciles() int { return bytes.Count(g.log(), []byte("reconcile blue\n")) }
