// Package crd holds the custom resource definition of Watcher, for programs that install it themselves. It is generated from
// api/v1beta2; `kubectl apply -k` takes this folder.
package crd

import (
	_ "embed"
	"slices"
)

//go:embed operator.kyma-project.io_watchers.yaml
var watchers []byte

// Watchers returns the custom resource definition watchers.operator.kyma-project.io, in YAML.
func Watchers() []byte { return slices.Clone(watchers) }
