package charts

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	texttemplate "text/template"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/test"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// The types have the fields of the tools that the page uses, by the names in their definitions: Flux 2 (helm-controller v2,
// source-controller v1, kustomize-controller v1), Argo CD (application.yaml, ApplicationSet), Rancher Fleet (fleet.yaml.json)
// and external-secrets v1. A misspelled field fails the test.
type (
	values map[string]any

	reference struct{ Kind, Name string }

	helmRelease struct {
		Interval, ReleaseName string
		ChartRef              reference
		Install, Upgrade      struct{ Remediation struct{ Retries int } }
		DriftDetection        struct{ Mode string }
		Values                values
	}

	ociRepository struct {
		Interval, URL string
		Ref           struct{ Tag string }
		LayerSelector struct{ MediaType, Operation string }
	}

	kustomization struct {
		Interval, Path string
		Prune, Wait    bool
		SourceRef      reference
		PostBuild      struct{ SubstituteFrom []reference }
	}

	application struct {
		Project string
		Source  struct {
			RepoURL, TargetRevision, Path string
			Helm                          struct {
				ReleaseName  string
				ValuesObject values
			}
		}
		Destination struct{ Server, Namespace string }
		SyncPolicy  struct {
			Automated   struct{ Prune, SelfHeal bool }
			SyncOptions []string
			Retry       struct{ Limit int }
		}
	}

	applicationSet struct {
		GoTemplate        bool
		GoTemplateOptions []string
		Generators        []struct {
			Clusters struct{ Selector metav1.LabelSelector }
		}
		Template struct {
			Metadata struct{ Name string }
			Spec     application
		}
	}

	fleetTarget struct {
		Name            string
		ClusterSelector metav1.LabelSelector
		Helm            struct{ Values values }
	}

	fleetFile struct {
		DefaultNamespace string
		Helm             struct {
			ReleaseName, Chart, Version string
			Values                      values
		}
		CorrectDrift    struct{ Enabled bool }
		RolloutStrategy struct {
			MaxUnavailable string
			Partitions     []struct {
				Name, MaxUnavailable string
				ClusterSelector      metav1.LabelSelector
			}
		}
		TargetCustomizations []fleetTarget
	}

	gitRepo struct {
		Repo, Branch string
		Paths        []string
		Targets      []struct{ ClusterSelector metav1.LabelSelector }
	}

	externalSecret struct {
		RefreshInterval string
		SecretStoreRef  reference
		Target          struct{ Name string }
		Data            []struct {
			SecretKey string
			RemoteRef struct{ Key, Property string }
		}
	}
)

const (
	pageID     = "runtime-1"
	pageDomain = "runtime-1.skr.example.com"
)

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// TestThePageOnGitOps parses each YAML document of the page, and renders the chart with its values, as the tool would.
func TestThePageOnGitOps(t *testing.T) {
	t.Parallel()
	found := map[string]values{} // by tool
	kinds := map[string]int{}
	for _, block := range yamlBlock.FindAllStringSubmatch(string(test.Read(t, "docs/guide/gitops.md")), -1) {
		for document := range strings.SplitSeq(block[1], "\n---\n") {
			kinds[parseDocument(t, document, found)]++
		}
	}

	want := map[string]int{
		"ExternalSecret": 1, "ConfigMap": 1, "Kustomization": 1, "Namespace": 1, "OCIRepository": 1, "HelmRelease": 1, "ApplicationSet": 1,
		"fleet.yaml": 1, "GitRepo": 1,
	}
	if !maps.Equal(kinds, want) {
		t.Errorf("the page has %v, want %v", kinds, want)
	}
	tools := []string{"Argo CD", "Fleet", "Fleet without a webhook", "Flux"}
	rig.Same(t, "tools", strings.Join(tools, ", "), strings.Join(slices.Sorted(maps.Keys(found)), ", "))
	for _, tool := range tools {
		all, err := renderValues(t, found[tool])
		if err != nil {
			t.Errorf("%s: %v\n%s", tool, err, all)
			continue
		}
		certificate := objects(t, all)["Certificate runtime-watcher"]
		if certificate == nil {
			t.Errorf("%s: no certificate is rendered", tool)
			continue
		}
		name, _, _ := unstructured.NestedString(certificate.Object, "spec", "commonName")
		domains, _, _ := unstructured.NestedStringSlice(certificate.Object, "spec", "dnsNames")
		if name != pageID || !slices.Contains(domains, pageDomain) {
			t.Errorf("%s: the certificate has the name %q and the domains %q, want %q and %q", tool, name, domains, pageID, pageDomain)
		}
	}

	// The test can fail: the chart refuses a value that it does not have.
	found["Flux"]["webhook"] = map[string]any{}
	_, err := renderValues(t, found["Flux"])
	rig.Fails(t, "a value that the chart does not have", err)
}

// parseDocument adds the values of a document, with those of one runtime in them. It returns the kind.
func parseDocument(t *testing.T, document string, found map[string]values) string {
	t.Helper()
	var head struct{ Kind string }
	rig.NoError(t, yaml.Unmarshal([]byte(document), &head))
	switch head.Kind {
	case "HelmRelease":
		document = strings.NewReplacer("${RUNTIME_ID}", pageID, "${RUNTIME_DOMAIN}", pageDomain).Replace(document)
		found["Flux"] = specOf[helmRelease](t, document).Values
	case "OCIRepository":
		specOf[ociRepository](t, document)
	case "Kustomization":
		specOf[kustomization](t, document)
	case "ApplicationSet":
		set := specOf[applicationSet](t, document)
		made := substitute(t, "{{", "}}", string(rig.Must(yaml.Marshal(set.Template.Spec))), map[string]any{
			"nameNormalized": pageID, "server": "https://runtime-1.example",
			"metadata": map[string]any{"annotations": map[string]string{
				"example.com/runtime-id": pageID, "example.com/runtime-domain": pageDomain,
			}},
		})
		var spec application
		rig.NoError(t, yaml.UnmarshalStrict([]byte(made), &spec))
		found["Argo CD"] = spec.Source.Helm.ValuesObject
	case "GitRepo":
		specOf[gitRepo](t, document)
	case "ExternalSecret":
		specOf[externalSecret](t, document)
	case "":
		document = substitute(t, "${", "}", document, map[string]any{"ClusterName": pageID})
		var file fleetFile
		rig.NoError(t, yaml.UnmarshalStrict([]byte(document), &file))
		found["Fleet"] = file.Helm.Values
		merged := maps.Clone(file.Helm.Values)
		maps.Copy(merged, file.TargetCustomizations[0].Helm.Values)
		found["Fleet without a webhook"] = merged
		return "fleet.yaml"
	}
	return head.Kind
}

func specOf[T any](t *testing.T, document string) T {
	t.Helper()
	var object struct {
		APIVersion string
		Kind       string
		Metadata   struct{ Name, Namespace string }
		Spec       T
	}
	rig.NoError(t, yaml.UnmarshalStrict([]byte(document), &object))
	return object.Spec
}

func substitute(t *testing.T, left, right, text string, of map[string]any) string {
	t.Helper()
	var out bytes.Buffer
	made := texttemplate.Must(texttemplate.New("page").Delims(left, right).Option("missingkey=error").Parse(text))
	rig.NoError(t, made.Execute(&out, of))
	return out.String()
}

func renderValues(t *testing.T, of values) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	rig.NoError(t, os.WriteFile(file, rig.Must(yaml.Marshal(of)), 0o600))
	return rig.Helm(t, "template", "agent", agent, "--namespace", namespace, "--kube-version", "1.36.0", "--values", file)
}
