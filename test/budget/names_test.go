package budget

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test"
)

// foreign matches a name of the first user of this project.
var foreign = regexp.MustCompile(`(?i)kyma|\bskr-`)

// places have names of the first user, and each says why. A path that ends in '/' is a folder.
var places = map[string]string{
	"controlplane/names/names.go":                       "the one place of the defaults",
	"controlplane/lifecyclemanager/":                    "for lifecycle-manager only",
	"controlplane/installation/former.go":               "SKRWebhook has the objects of lifecycle-manager's agent",
	"core/owner.go":                                     "the default of all change sources, which controlplane/names passes on",
	"core/watch/watch.go":                               "the text form reads the label of the default names, and writes none",
	"core/contract/single.go":                           "the contracts v1 and v2 are fixed on the wire",
	"core/coretest/forwarder_samples.go":                "samples of the wire",
	"cmd/conformance/trials.go":                         "samples of the wire",
	"adapters/admission/configurationoptions.go":        "the default domain of webhooks, which controlplane/names passes on",
	"adapters/controllerruntime/runtimes.go":            "the default annotation of domains, which controlplane/names passes on",
	"cmd/agent/table.go":                                "METRICS_ALIASES names the project whose metrics it serves",
	"controlplane/config/crd/":                          "generated with the default names: crd.Watchers takes others",
	"controlplane/config/agent/":                        "the mark of manifests that are applied by hand: the installer removes it, and the chart has another",
	"cmd/agent/internal/webhookconfig/webhookconfig.go": "the help says the default",
	"controlplane/cmd/watchercrd/main.go":               "the help says the default",
	"deploy/controlplane/role.yaml":                     "generated with the default names: the chart takes others",
	"deploy/charts/runtime-watcher-controlplane/":       "the defaults of the values, and the generated files",
	"deploy/charts/runtime-watcher-agent/":              "the default of rules.webhookDomain",
	"deploy/argocd/argocd-cm.patch.yaml":                "the key has the default names: watcher.md says how to change it",
	"deploy/dropin/":                                    "for lifecycle-manager only",
	"deploy/migration/":                                 "for lifecycle-manager only",
	"deploy/observability/":                             "rules of the default domain of webhooks: the chart takes another one",
	"deploy/gateway-api/gateway.yaml":                   "the label of the gateway in the Watchers of lifecycle-manager",
	"deploy/istio/gateway.yaml":                         "the label of the gateway in the Watchers of lifecycle-manager",
}

// An operator with names of its own must find no name of another project in its clusters. So each name
// has one place: controlplane/names, and the defaults of the agent.
func TestNamesHaveOnePlace(t *testing.T) {
	t.Parallel()
	test.NoticeSources(t)
	test.NoticeDocuments(t)

	seen := make(map[string]bool)
	for folder := range strings.FieldsSeq("core keys listener internal adapters agent cmd controlplane deploy") {
		err := filepath.WalkDir(filepath.Join(test.Root(), folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				if entry != nil && entry.Name() == "testdata" {
					return filepath.SkipDir
				}
				return err
			}
			relative, err := filepath.Rel(test.Root(), path)
			if err != nil || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			found := foreign.FindAllString(literals(path, text), -1)
			if place := placeOf(filepath.ToSlash(relative)); place != "" {
				seen[place] = seen[place] || len(found) > 0
			} else if len(found) > 0 {
				t.Errorf("%s has %q: want names of controlplane/names", relative, found)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for place := range places {
		if !seen[place] {
			t.Errorf("%s has no such name any more: remove it from the list", place)
		}
	}
}

func placeOf(path string) string {
	for place := range places {
		if path == place || strings.HasSuffix(place, "/") && strings.HasPrefix(path, place) {
			return place
		}
	}
	return ""
}

// literals returns the texts in a Go file, without comments, and any other file as it is.
func literals(path string, text []byte) string {
	if filepath.Ext(path) != ".go" {
		return string(text)
	}
	var s scanner.Scanner
	files := token.NewFileSet()
	s.Init(files.AddFile(path, files.Base(), len(text)), text, nil, 0)
	var all strings.Builder
	for {
		_, kind, literal := s.Scan()
		switch kind { //nolint:exhaustive // The other tokens have no text.
		case token.EOF:
			return all.String()
		case token.STRING:
			all.WriteString(literal + "\n")
		}
	}
}
