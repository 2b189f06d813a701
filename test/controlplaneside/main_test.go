// Package controlplaneside proves adapters/controlplane against real API servers.
package controlplaneside

import (
	"os"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/config/crd"
	"github.com/runtime-watcher/runtime-watcher/test/controlplane"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard()) // Or controller-runtime complains, with a stack trace.
	os.Exit(m.Run())
}

// startControlPlane starts an API server that knows Watchers, and skips the test where none may be started.
func startControlPlane(t *testing.T, opts controlplane.Options) *controlplane.ControlPlane {
	t.Helper()

	if testing.Short() {
		t.Skip("needs a real API server, which -short leaves out")
	}

	opts.CRDs = append(opts.CRDs, watcherCRD(t))

	return controlplane.StartT(t, opts)
}

func watcherCRD(t *testing.T) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()

	var definition apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(crd.Watchers(), &definition); err != nil {
		t.Fatalf("custom resource definition: %v", err)
	}

	return &definition
}

// object reads one object in YAML.
func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()

	var content map[string]any
	if err := yaml.UnmarshalStrict([]byte(strings.TrimSpace(text)), &content); err != nil {
		t.Fatalf("YAML: %v\n%s", err, text)
	}

	return &unstructured.Unstructured{Object: content}
}
