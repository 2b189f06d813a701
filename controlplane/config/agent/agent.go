// Package agent embeds the manifests of the agent. The folder is a kustomize base, and its folders
// canary and informer are components of it. deploy/agent refers to all three.
package agent

import (
	"embed"
	"io/fs"
)

//go:embed *.yaml canary/*.yaml informer/*.yaml
var manifests embed.FS

// Manifests returns the YAML files of this folder and of its folders, with one object each.
func Manifests() fs.FS { return manifests }
