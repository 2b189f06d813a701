// Package agent holds the manifests of the agent, for programs that install it themselves. The folder is a kustomize base, and its
// folder canary a component of it: deploy/agent leads here.
package agent

import (
	"embed"
	"io/fs"
)

//go:embed *.yaml canary/*.yaml
var manifests embed.FS

// Manifests returns the files of this folder and of the folder canary, in YAML with one object each.
func Manifests() fs.FS { return manifests }
