package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver" //nolint:depguard // Not released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"   //nolint:depguard // Not released.
)

// namespace has all objects, in both clusters.
const namespace = metav1.NamespaceDefault

// startAPIServers starts all clusters concurrently.
func (d *demo) startAPIServers(ctx context.Context) (string, error) {
	names := []string{"control-plane"}
	for _, r := range d.remotes {
		names = append(names, r.name)
	}
	all := make([]apiserver.Options, len(names))
	for i, name := range names {
		all[i] = apiserver.Options{
			KubeconfigPath: filepath.Join(d.dir, name+".kubeconfig"),
			LogDir:         filepath.Join(d.logs, name), Logger: d.log,
		}
		if err := os.Mkdir(all[i].LogDir, 0o700); err != nil {
			return "", err
		}
	}
	root, err := machine.Repository()
	if err != nil {
		return "", err
	}
	all[0].CRDPaths = []string{filepath.Join(root, "examples", "quickstart", "runtimes.yaml")}
	clusters, stop, err := apiserver.StartAll(ctx, all)
	d.closers = append(d.closers, stop)
	if err != nil {
		return "", err
	}
	d.controlPlane = clusters[0]
	for i, r := range d.remotes {
		r.cluster = clusters[1+i]
	}
	for name, domain := range registered() {
		if err := d.controlPlane.Client.Create(ctx, newRuntime(name, domain)); err != nil {
			return "", err
		}
	}
	return "control plane at " + host(d.controlPlane) + ", runtime at " + host(d.remotes[0].cluster), nil
}

// runtimeKind is the kind of the objects that represent runtimes. Any kind is possible.
func runtimeKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "quickstart.example.com", Version: "v1", Kind: "Runtime"}
}

// registered returns the domains of the runtimes in the control plane. Nothing changes in the
// second one, so there must be no reconcile for it. It has a cluster with --serve only.
func registered() map[string]string {
	return map[string]string{runtimeName: runtimeDomain, neighbour: neighbourDomain}
}

// newRuntime returns an object that represents a runtime.
func newRuntime(name, domain string) *unstructured.Unstructured {
	runtime := &unstructured.Unstructured{}
	runtime.SetGroupVersionKind(runtimeKind())
	runtime.SetNamespace(namespace)
	runtime.SetName(name)
	runtime.SetAnnotations(map[string]string{controllerruntime.DomainAnnotation: domain})
	return runtime
}

func host(cluster *apiserver.ControlPlane) string {
	return strings.TrimSuffix(cluster.Config.Host, "/")
}
