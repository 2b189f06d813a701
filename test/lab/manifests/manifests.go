// Package manifests reads the custom resource definitions of Watchers and of their routes, for
// tests.
package manifests

import (
	"path/filepath"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/controlplane/config/crd"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

// Watchers returns the custom resource definition of Watchers with the default names, which the
// caller may change.
func Watchers(t testing.TB) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	return WatchersOf(t, names.Names{})
}

// WatchersOf is [Watchers] for an operator with its own names.
func WatchersOf(t testing.TB, n names.Names) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()

	text, err := crd.Watchers(n)
	if err != nil {
		t.Fatalf("custom resource definition: %v", err)
	}

	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(text, definition); err != nil {
		t.Fatalf("custom resource definition: %v", err)
	}

	return definition
}

// Routes returns the files of the definitions of a kind of routes. They are part of the modules of
// the typed APIs.
func Routes(t testing.TB, kind watcher.Routing) []string {
	t.Helper()

	switch kind {
	case watcher.NoRouting:
		return nil
	case watcher.VirtualService:
		return []string{filepath.Join(moduleDir(t, ".", "istio.io/api"), "kubernetes", "customresourcedefinitions.gen.yaml")}
	case watcher.HTTPRoute:
	}

	standard := filepath.Join(moduleDir(t, ".", "sigs.k8s.io/gateway-api"), "config", "crd", "standard")
	return []string{
		filepath.Join(standard, "gateway.networking.k8s.io_gateways.yaml"),
		filepath.Join(standard, "gateway.networking.k8s.io_httproutes.yaml"),
	}
}

// Gardener returns the files of the definitions of cert-management. Its module is downloaded and is
// not a dependency, because it needs 200 modules and different versions of Kubernetes.
func Gardener(t testing.TB) []string {
	t.Helper()
	folder := filepath.Join(moduleDir(t, t.TempDir(), "github.com/gardener/cert-management@v0.16.0"), "pkg", "apis", "cert", "crds")
	return []string{
		filepath.Join(folder, "cert.gardener.cloud_certificates.yaml"),
		filepath.Join(folder, "cert.gardener.cloud_issuers.yaml"),
	}
}

func moduleDir(t testing.TB, folder, module string) string {
	t.Helper()

	dir, err := machine.Module(t.Context(), folder, module)
	if err != nil {
		t.Fatalf("module %s: %v", module, err)
	}
	return dir
}

// Object reads one object in YAML.
func Object(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()

	var content map[string]any
	if err := yaml.UnmarshalStrict([]byte(strings.TrimSpace(text)), &content); err != nil {
		t.Fatalf("YAML: %v\n%s", err, text)
	}
	return &unstructured.Unstructured{Object: content}
}
