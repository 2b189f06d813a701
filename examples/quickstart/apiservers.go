package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver" //nolint:depguard // Neither is released.
)

// namespace has all objects, in both clusters.
const namespace = metav1.NamespaceDefault

// startAPIServers starts all clusters concurrently.
func (d *demo) startAPIServers(ctx context.Context) (string, error) {
	var starting sync.WaitGroup
	errs := make([]error, 1+len(d.remotes))
	starting.Go(func() {
		d.controlPlane, errs[0] = d.startAPIServer(ctx, "control-plane", runtimeCRD())
	})
	for i, r := range d.remotes {
		starting.Go(func() { r.cluster, errs[1+i] = d.startAPIServer(ctx, r.name) })
	}
	starting.Wait()
	d.closers = append(d.closers, d.stopAPIServers)
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	for name, domain := range registered() {
		if err := d.controlPlane.Client.Create(ctx, newRuntime(name, domain)); err != nil {
			return "", err
		}
	}
	return "control plane at " + host(d.controlPlane) + ", runtime at " + host(d.remotes[0].cluster), nil
}

func (d *demo) startAPIServer(
	ctx context.Context, name string, crds ...*apiextensionsv1.CustomResourceDefinition,
) (*apiserver.ControlPlane, error) {
	logs := filepath.Join(d.logs, name)
	if err := os.Mkdir(logs, 0o700); err != nil {
		return nil, err
	}
	return apiserver.Start(ctx, apiserver.Options{
		CRDs: crds, KubeconfigPath: filepath.Join(d.dir, name+".kubeconfig"), LogDir: logs, Logger: d.log,
	})
}

func (d *demo) stopAPIServers() error {
	clusters := []*apiserver.ControlPlane{d.controlPlane}
	for _, r := range d.remotes {
		clusters = append(clusters, r.cluster)
	}
	var stopping sync.WaitGroup
	errs := make([]error, len(clusters))
	for i, cluster := range clusters {
		if cluster != nil {
			stopping.Go(func() { errs[i] = cluster.Stop() })
		}
	}
	stopping.Wait()
	return errors.Join(errs...)
}

// runtimeKind is the kind of the objects that represent runtimes. Any kind is possible.
func runtimeKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "quickstart.example.com", Version: "v1", Kind: "Runtime"}
}

// runtimeCRD defines runtimeKind, with metadata only.
func runtimeCRD() *apiextensionsv1.CustomResourceDefinition {
	kind := runtimeKind()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name = "runtimes." + kind.Group
	crd.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
		Group: kind.Group,
		Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{
			Kind: kind.Kind, ListKind: "RuntimeList", Plural: "runtimes", Singular: "runtime",
		},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: kind.Version, Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"},
			},
			AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{{
				Name: "Domain", Type: "string", JSONPath: ".metadata.annotations." + controllerruntime.DomainAnnotation,
			}},
		}},
	}
	return crd
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
