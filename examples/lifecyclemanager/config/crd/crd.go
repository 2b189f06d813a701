// Package crd contains the custom resource definitions of this example.
package crd

import (
	"bytes"
	_ "embed"
	"io"

	"github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

//go:embed operator.kyma-project.io_kymas.yaml
var kymas []byte

//go:embed operator.kyma-project.io_moduletemplates.yaml
var moduleTemplates []byte

// ForRuntimes returns new copies of the definitions that every runtime needs.
func ForRuntimes() ([]*unstructured.Unstructured, error) {
	return utils.ReadObjects(io.MultiReader(bytes.NewReader(kymas), bytes.NewReader(moduleTemplates)))
}
