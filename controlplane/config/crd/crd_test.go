package crd_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/controlplane/config/crd"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
)

func read(t *testing.T, n names.Names) (text string, definition *unstructured.Unstructured) {
	t.Helper()

	written, err := crd.Watchers(n)
	if err != nil {
		t.Fatal(err)
	}

	definition = &unstructured.Unstructured{}
	if err := yaml.Unmarshal(written, &definition.Object); err != nil {
		t.Fatal(err)
	}

	return string(written), definition
}

func TestDefinitionOfAnOperator(t *testing.T) {
	t.Parallel()

	text, definition := read(t, names.Names{Group: "fleet.example.com", Kind: "FleetWatch", Plural: "fleetwatches"})
	if strings.Contains(text, "kyma") {
		t.Error("it has a name of another project")
	}
	if name := definition.GetName(); name != "fleetwatches.fleet.example.com" {
		t.Errorf("its name is %s", name)
	}

	spec, _, _ := unstructured.NestedMap(definition.Object, "spec")
	if spec["group"] != "fleet.example.com" {
		t.Errorf("its group is %v", spec["group"])
	}

	kinds, _, _ := unstructured.NestedStringMap(spec, "names")
	for field, want := range map[string]string{
		"kind": "FleetWatch", "listKind": "FleetWatchList", "plural": "fleetwatches", "singular": "fleetwatch",
	} {
		if kinds[field] != want {
			t.Errorf("%s is %q, want %q", field, kinds[field], want)
		}
	}

	if versions, _, _ := unstructured.NestedSlice(spec, "versions"); len(versions) != 1 {
		t.Errorf("it has %d versions, want v1beta2 alone", len(versions))
	}

	// 253 - 63 for the namespace - 1 - len(".operator.fleet.example.com")
	for _, want := range []string{"self.metadata.name.size() <= 162", "at most 162 characters", "fleet.example.com/managed-by"} {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), want) {
			t.Errorf("it has no %q", want)
		}
	}
}

// A cluster that has stored v1beta1 accepts no definition without it.
func TestDefinitionOfTheDefaultGroup(t *testing.T) {
	t.Parallel()

	for _, n := range []names.Names{{}, {Prefix: "fleet.example.com"}} {
		_, definition := read(t, n)
		versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
		if definition.GetName() != "watchers.operator.kyma-project.io" || len(versions) != 2 {
			t.Errorf("%s has %d versions, want two of watchers.operator.kyma-project.io", definition.GetName(), len(versions))
		}
	}

	if _, err := crd.Watchers(names.Names{Group: "fleet"}); err == nil {
		t.Error("an invalid group is accepted")
	}
}
