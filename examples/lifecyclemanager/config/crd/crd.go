// Package crd has the custom resource definitions of this example.
package crd

import (
	"bytes"
	_ "embed"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

//go:embed operator.kyma-project.io_kymas.yaml
var kymas []byte

//go:embed operator.kyma-project.io_moduletemplates.yaml
var moduleTemplates []byte

// ForRuntimes returns new copies of the definitions that every runtime needs.
func ForRuntimes() ([]*unstructured.Unstructured, error) {
	var crds []*unstructured.Unstructured
	for _, text := range [][]byte{kymas, moduleTemplates} {
		crd := &unstructured.Unstructured{}
		if err := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), len(text)).Decode(crd); err != nil {
			return nil, err
		}
		crds = append(crds, crd)
	}
	return crds, nil
}
