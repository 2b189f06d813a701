// Package agent embeds the manifests of the agent. The folder is a kustomize base, and its folders
// canary, informer and proxy are components of it. deploy/agent refers to all of them. Installers
// configure a proxy through their options, so the component proxy is not embedded.
package agent

import (
	"embed"
	"io/fs"
)

//go:embed *.yaml canary/*.yaml informer/*.yaml
var manifests embed.FS

// Manifests returns the YAML files of this folder and its subfolders, with one object each.
func Manifests() fs.FS { return manifests }
