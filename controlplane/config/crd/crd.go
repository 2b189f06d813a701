// Package crd provides the custom resource definition of Watcher for any operator. The file is
// generated from api/v1beta2 with the default names. The folder is also a kustomize base.
package crd

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
)

//go:embed operator.kyma-project.io_watchers.yaml
var watchers []byte

// Watchers returns the custom resource definition with the names of an operator, in YAML. It fails
// if the names are invalid.
//
// With the default group, the definition also has the version v1beta1, which is not served. A
// cluster that has ever stored that version accepts no definition without it. Other groups never
// had that version.
func Watchers(n names.Names) ([]byte, error) {
	if err := n.Validate(); err != nil {
		return nil, fmt.Errorf("custom resource definition: %w", err)
	}

	n = n.WithDefaults()
	defaults := names.Names{}.WithDefaults()
	if n == defaults {
		return slices.Clone(watchers), nil
	}

	text := strings.ReplaceAll(string(watchers), defaults.ManagedBy(), n.ManagedBy())
	limit := func(n names.Names) string { return strconv.Itoa(n.MaxName() - maxNamespace) }
	text = strings.ReplaceAll(text, "at most "+limit(defaults)+" characters", "at most "+limit(n)+" characters")
	text = strings.ReplaceAll(text, "size() <= "+limit(defaults), "size() <= "+limit(n))

	definition := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &definition.Object); err != nil {
		return nil, fmt.Errorf("custom resource definition of this build: %w", err)
	}
	if err := rename(definition, n); err != nil {
		return nil, fmt.Errorf("custom resource definition of this build: %w", err)
	}

	return yaml.Marshal(definition.Object)
}

// maxNamespace is the most characters of a namespace (RFC 1123, section 2.1).
const maxNamespace = 63

func rename(definition *unstructured.Unstructured, n names.Names) error {
	kind := n.GroupVersionKind()
	definition.SetName(n.Plural + "." + n.Group)
	err := unstructured.SetNestedField(definition.Object, n.Group, "spec", "group")
	if err != nil {
		return err
	}

	err = unstructured.SetNestedStringMap(definition.Object, map[string]string{
		"kind": n.Kind, "listKind": n.Kind + "List", "plural": n.Plural, "singular": strings.ToLower(n.Kind),
	}, "spec", "names")
	if err != nil || n.Group == (names.Names{}).GroupVersionKind().Group {
		return err
	}

	versions, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
	if err != nil {
		return err
	}

	versions = slices.DeleteFunc(versions, func(version any) bool {
		fields, isMap := version.(map[string]any)
		return !isMap || fields["name"] != kind.Version
	})
	return unstructured.SetNestedSlice(definition.Object, versions, "spec", "versions")
}
