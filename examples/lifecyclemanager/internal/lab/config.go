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

// Kustomize returns the objects of a folder below config/, as `kubectl kustomize` does.
func Kustomize(folder string) ([]*unstructured.Unstructured, error) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), config(folder))
	if err != nil {
		return nil, err
	}
	text, err := built.AsYaml()
	if err != nil {
		return nil, err
	}
	return utils.ReadObjects(bytes.NewReader(text))
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
