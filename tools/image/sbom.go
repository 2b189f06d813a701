package main

import (
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"
)

// document is an SBOM (SPDX 2.3, clauses 6, 7 and 11).
type document struct {
	Version       string         `json:"spdxVersion"`
	License       string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []spdxPackage  `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID         string      `json:"SPDXID"`
	Name       string      `json:"name"`
	Version    string      `json:"versionInfo"`
	Download   string      `json:"downloadLocation"`
	Files      bool        `json:"filesAnalyzed"`
	Concluded  string      `json:"licenseConcluded"`
	Declared   string      `json:"licenseDeclared"`
	Copyright  string      `json:"copyrightText"`
	References []reference `json:"externalRefs"`
}

type reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

const noAssertion = "NOASSERTION"

// sbom returns the modules that the Go linker has noted in a binary, with the standard library.
func sbom(binary, digest string, of release) ([]byte, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	main := newPackage(info.Main.Path, of.version, "Apache-2.0")
	all := &document{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT",
		Name:      filepath.Base(binary) + " " + of.version,
		Namespace: source + "/sbom/" + digest,
		Creation: creation{
			Created:  of.created.Format(time.RFC3339),
			Creators: []string{"Tool: runtime-watcher-tools-image"},
		},
		Packages:      []spdxPackage{main},
		Relationships: []relationship{{"SPDXRef-DOCUMENT", "DESCRIBES", main.ID}},
	}
	all.add(main, newPackage("stdlib", strings.TrimPrefix(info.GoVersion, "go"), "BSD-3-Clause"))
	for _, module := range info.Deps {
		all.add(main, dependency(module, of))
	}
	return json.MarshalIndent(all, "", " ")
}

// dependency returns the package of a module. The modules of this repository have its version.
func dependency(module *debug.Module, of release) spdxPackage {
	used := cmp.Or(module.Replace, module)
	if strings.HasPrefix(used.Path, ".") {
		return newPackage(module.Path, of.version, "Apache-2.0")
	}
	return newPackage(used.Path, used.Version, noAssertion)
}

func newPackage(path, version, license string) spdxPackage {
	return spdxPackage{
		ID:   "SPDXRef-" + strings.NewReplacer("/", "-", "_", "-", "~", "-").Replace(path),
		Name: path, Version: version, Download: noAssertion,
		Concluded: license, Declared: license, Copyright: noAssertion,
		References: []reference{{"PACKAGE-MANAGER", "purl", fmt.Sprintf("pkg:golang/%s@%s", path, version)}},
	}
}

func (d *document) add(main, part spdxPackage) {
	d.Packages = append(d.Packages, part)
	d.Relationships = append(d.Relationships, relationship{main.ID, "DEPENDS_ON", part.ID})
}
