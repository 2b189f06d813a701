package controlplaneside

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/test/controlplane"
)

// apply is what `kubectl apply --server-side --validate=strict` asks an API server for.
func apply(t *testing.T, plane *controlplane.ControlPlane, object *unstructured.Unstructured) error {
	t.Helper()

	c := client.WithFieldValidation(plane.Client, "Strict")

	return c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("kubectl"), client.ForceOwnership)
}

const goodWatcher = `
apiVersion: operator.kyma-project.io/v1beta2
kind: Watcher
metadata:
  name: kyma
  namespace: default
spec:
  manager: lifecycle-manager
  resourceToWatch: {group: operator.kyma-project.io, version: "*", resource: kymas}
  labelsToWatch: {operator.kyma-project.io/watched-by: kyma}
  field: spec
  serviceInfo: {name: klm-events, namespace: kcp-system, port: 8082}
  gateway:
    selector:
      matchLabels: {operator.kyma-project.io/watcher-gateway: default}
`

func TestWrongWatchersAreRefused(t *testing.T) {
	plane := startControlPlane(t, controlplane.Options{})

	long := strings.Repeat("a", 64)
	many := make(map[string]any)

	for range 65 {
		many["l"+strings.Repeat("x", len(many)%60)+string(rune('a'+len(many)/60))] = "v"
	}

	tests := map[string]struct {
		path  string // within spec, with dots, unless it begins with metadata
		value any    // nil removes it
		want  []string
	}{
		"port 0":                   {"serviceInfo.port", int64(0), []string{"spec.serviceInfo.port", "greater than or equal to 1"}},
		"negative port":            {"serviceInfo.port", int64(-1), []string{"spec.serviceInfo.port", "greater than or equal to 1"}},
		"port 65536":               {"serviceInfo.port", int64(65536), []string{"spec.serviceInfo.port", "less than or equal to 65535"}},
		"port that wraps":          {"serviceInfo.port", int64(1<<32 + 80), []string{"spec.serviceInfo.port"}},
		"port as text":             {"serviceInfo.port", "8082", []string{"spec.serviceInfo.port", "expected numeric"}},
		"no port":                  {"serviceInfo.port", nil, []string{"spec.serviceInfo.port", "Required"}},
		"no service":               {"serviceInfo", nil, []string{"spec.serviceInfo", "Required"}},
		"service with a domain":    {"serviceInfo.name", "klm.kcp-system", []string{"spec.serviceInfo.name", "name of a service"}},
		"no name of the service":   {"serviceInfo.name", "", []string{"spec.serviceInfo.name", "name of a service"}},
		"long name of the service": {"serviceInfo.name", long, []string{"spec.serviceInfo.name", "63"}},
		"namespace with a slash":   {"serviceInfo.namespace", "a/b", []string{"spec.serviceInfo.namespace", "name of a namespace"}},
		"long namespace":           {"serviceInfo.namespace", long, []string{"spec.serviceInfo.namespace", "63"}},
		"manager in capitals":      {"manager", "Lifecycle-Manager", []string{"spec.manager", "DNS-1123 label"}},
		"manager with a slash":     {"manager", "../../etc", []string{"spec.manager", "DNS-1123 label"}},
		"manager with a dot":       {"manager", "klm.v2", []string{"spec.manager", "DNS-1123 label"}},
		"manager with a line feed": {"manager", "klm\n", []string{"spec.manager", "DNS-1123 label"}},
		"long manager":             {"manager", long, []string{"spec.manager", "63"}},
		"field data":               {"field", "data", []string{"spec.field", `"spec", "status"`}},
		"empty field":              {"field", "", []string{"spec.field", `"spec", "status"`}},
		"all resources":            {"resourceToWatch.resource", "*", []string{"spec.resourceToWatch.resource", "wildcard"}},
		"all subresources":         {"resourceToWatch.resource", "kymas/*", []string{"spec.resourceToWatch.resource", "subresource"}},
		"a subresource":            {"resourceToWatch.resource", "kymas/status", []string{"spec.resourceToWatch.resource", "subresource"}},
		"a kind":                   {"resourceToWatch.resource", "ConfigMap", []string{"spec.resourceToWatch.resource", "plural"}},
		"no resource":              {"resourceToWatch.resource", nil, []string{"spec.resourceToWatch.resource", "Required"}},
		"empty resource":           {"resourceToWatch.resource", "", []string{"spec.resourceToWatch.resource", "plural"}},
		"long resource":            {"resourceToWatch.resource", long, []string{"spec.resourceToWatch.resource", "63"}},
		"all groups":               {"resourceToWatch.group", "*", []string{"spec.resourceToWatch.group", "wildcard"}},
		"group in capitals":        {"resourceToWatch.group", "Apps", []string{"spec.resourceToWatch.group", "one API group"}},
		"no group":                 {"resourceToWatch.group", nil, []string{"spec.resourceToWatch.group", "Required"}},
		"long group":               {"resourceToWatch.group", strings.Repeat("a.", 127), []string{"spec.resourceToWatch.group", "253"}},
		"empty version":            {"resourceToWatch.version", "", []string{"spec.resourceToWatch.version", "such as v1"}},
		"no version":               {"resourceToWatch.version", nil, []string{"spec.resourceToWatch.version", "Required"}},
		"some versions":            {"resourceToWatch.version", "v*", []string{"spec.resourceToWatch.version", `"*" for any`}},
		"what calls no webhooks": {
			"resourceToWatch",
			map[string]any{"group": "admissionregistration.k8s.io", "version": "v1", "resource": "validatingwebhookconfigurations"},
			[]string{"spec.resourceToWatch.resource", "no webhooks"},
		},
		"label key with a blank":  {"labelsToWatch", map[string]any{"a b": "c"}, []string{"spec.labelsToWatch", "label key"}},
		"empty label key":         {"labelsToWatch", map[string]any{"": "c"}, []string{"spec.labelsToWatch", "label key"}},
		"label key of two parts":  {"labelsToWatch", map[string]any{"a/b/c": "c"}, []string{"spec.labelsToWatch", "label key"}},
		"long label key":          {"labelsToWatch", map[string]any{long: "c"}, []string{"spec.labelsToWatch", "label key"}},
		"label value of blanks":   {"labelsToWatch", map[string]any{"a": "b c"}, []string{"spec.labelsToWatch[a]", "label value"}},
		"long label value":        {"labelsToWatch", map[string]any{"a": long}, []string{"spec.labelsToWatch.a", "63"}},
		"label value of a number": {"labelsToWatch", map[string]any{"a": int64(1)}, []string{"spec.labelsToWatch.a", "string"}},
		"too many labels":         {"labelsToWatch", many, []string{"spec.labelsToWatch", "64"}},
		"no gateway":              {"gateway", nil, []string{"spec.gateway", "Required"}},
		"no selector":             {"gateway.selector", nil, []string{"spec.gateway.selector", "Required"}},
		"empty selector":          {"gateway.selector", map[string]any{}, []string{"spec.gateway.selector", "every gateway"}},
		"selector without labels": {"gateway.selector.matchLabels", map[string]any{}, []string{"spec.gateway.selector", "every gateway"}},
		"selector that is text":   {"gateway.selector", "a=b", []string{"spec.gateway.selector", "object"}},
		"selector's key":          {"gateway.selector.matchLabels", map[string]any{"-a": "b"}, []string{"spec.gateway.selector.matchLabels", "label key"}},
		"selector's value":        {"gateway.selector.matchLabels", map[string]any{"a": "-b"}, []string{"spec.gateway.selector.matchLabels[a]", "label value"}},
		"unknown operator":        requirement(map[string]any{"key": "a", "operator": "Like", "values": []any{"b"}}, "[0].operator", `"In", "NotIn", "Exists", "DoesNotExist"`),
		"In without values":       requirement(map[string]any{"key": "a", "operator": "In"}, "[0].values", "In and NotIn"),
		"Exists with values":      requirement(map[string]any{"key": "a", "operator": "Exists", "values": []any{"b"}}, "[0].values", "none for Exists"),
		"requirement's key":       requirement(map[string]any{"key": "a b", "operator": "Exists"}, "[0].key", "label key"),
		"requirement's value":     requirement(map[string]any{"key": "a", "operator": "In", "values": []any{"b c"}}, "[0].values[0]", "label value"),
		"a long name":             {"metadata.name", strings.Repeat("a", 165), []string{"metadata.name", "at most 164"}},
		"a typing error":          {"labelsToWtach", map[string]any{"a": "b"}, []string{"spec.labelsToWtach"}},
		"no spec":                 {"", nil, []string{"spec", "Required"}},
	}

	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			wrong := object(t, goodWatcher)
			setField(t, wrong, tt.path, tt.value)

			err := apply(t, plane, wrong)
			if err == nil {
				t.Fatal("it was accepted")
			}

			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the message does not say %q:\n%v", want, err)
				}
			}

			t.Log(err)
		})
	}
}

type wrongValue = struct {
	path  string
	value any
	want  []string
}

func requirement(r map[string]any, path string, want ...string) wrongValue {
	return wrongValue{"gateway.selector.matchExpressions", []any{r}, append([]string{"spec.gateway.selector.matchExpressions" + path}, want...)}
}

// setField sets a field of the spec, or removes it.
func setField(t *testing.T, o *unstructured.Unstructured, path string, value any) {
	t.Helper()

	fields := strings.Split(path, ".")
	if fields[0] != "metadata" {
		fields = append([]string{"spec"}, fields...)
	}

	if path == "" {
		fields = fields[:1]
	}

	if value == nil {
		unstructured.RemoveNestedField(o.Object, fields...)

		return
	}

	if err := unstructured.SetNestedField(o.Object, value, fields...); err != nil {
		t.Fatal(err)
	}
}

func TestTheGoodWatcherIsAccepted(t *testing.T) {
	plane := startControlPlane(t, controlplane.Options{})

	if err := apply(t, plane, object(t, goodWatcher)); err != nil {
		t.Fatal(err)
	}

	if err := plane.Client.Delete(t.Context(), object(t, goodWatcher)); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}
