// Package crd embeds the custom resource definition of Watcher. The definition is generated from
// api/v1beta2. The folder is a kustomize base, too.
package crd

import (
	_ "embed"
	"slices"
)

//go:embed operator.kyma-project.io_watchers.yaml
var watchers []byte

// Watchers returns the custom resource definition watchers.operator.kyma-project.io, in YAML.
func Watchers() []byte { return slices.Clone(watchers) }
