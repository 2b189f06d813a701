package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"
)

// object is an object of an SBOM (SPDX 2.3, clauses 6, 7 and 11).
type object = map[string]any

const noAssertion = "NOASSERTION"

// sbom returns the modules that the Go linker has noted in a binary, with the standard library.
func sbom(info *debug.BuildInfo, binary, digest string, of release, parts []part) ([]byte, error) {
	program := newPackage(info.Main.Path, of.version, own)
	packages := []object{program}
	relationships := []object{relate("SPDXRef-DOCUMENT", "DESCRIBES", program)}

	for _, p := range append(siblings(info, of), parts...) {
		dependency := newPackage(p.path, p.version, p.license)
		packages = append(packages, dependency)
		relationships = append(relationships, relate(program["SPDXID"], "DEPENDS_ON", dependency))
	}

	return json.MarshalIndent(object{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
		"name":              filepath.Base(binary) + " " + of.version,
		"documentNamespace": source + "/sbom/" + digest,
		"creationInfo": object{
			"created": of.created.Format(time.RFC3339), "creators": []string{"Tool: runtime-watcher-tools-image"},
		},
		"packages": packages, "relationships": relationships,
	}, "", " ")
}

// siblings returns the modules of this repository in a binary. They have the version of the binary.
func siblings(info *debug.BuildInfo, of release) (parts []part) {
	for _, m := range info.Deps {
		if m.Replace != nil || strings.HasPrefix(m.Path+"/", root) {
			parts = append(parts, part{path: m.Path, version: of.version, license: own})
		}
	}
	return parts
}

func newPackage(path, version, license string) object {
	return object{
		"SPDXID": "SPDXRef-" + strings.NewReplacer("/", "-", "_", "-", "~", "-").Replace(path),
		"name":   path, "versionInfo": version, "downloadLocation": noAssertion, "filesAnalyzed": false,
		"licenseConcluded": license, "licenseDeclared": license, "copyrightText": noAssertion,
		"externalRefs": []object{{
			"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
			"referenceLocator": fmt.Sprintf("pkg:golang/%s@%s", path, version),
		}},
	}
}

func relate(element any, kind string, related object) object {
	return object{"spdxElementId": element, "relationshipType": kind, "relatedSpdxElement": related["SPDXID"]}
}
