package lab

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"

	"github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	rig "github.com/runtime-watcher/runtime-watcher/test/lab" //nolint:depguard // Not released.
)

// kustomize returns the objects of a folder below config/, as `kubectl kustomize` does.
func (l *Lab) kustomize(folder string) []*unstructured.Unstructured {
	l.Helper()

	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), config(folder))
	rig.NoError(l.TB, err)
	text, err := built.AsYaml()
	rig.NoError(l.TB, err)
	objects, err := utils.ReadObjects(bytes.NewReader(text))
	rig.NoError(l.TB, err)

	return objects
}

// ApplyFile applies a file below config/, with one object, to the control plane.
func (l *Lab) ApplyFile(file string) {
	l.Helper()

	text, err := os.Open(config(file))
	rig.NoError(l.TB, err)
	defer text.Close()

	object, err := utils.ReadObject(text)
	rig.NoError(l.TB, err)
	l.Apply(object)
}

// config returns a path below config/.
func config(path string) string {
	_, source, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(source), "..", "..", "config", path)
}
