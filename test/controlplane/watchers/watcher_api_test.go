package watchers

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
	"github.com/runtime-watcher/runtime-watcher/test/lab/today"
)

// apply makes the request of `kubectl apply --server-side --validate=strict`.
func apply(t *testing.T, plane *apiserver.ControlPlane, object *unstructured.Unstructured) error {
	t.Helper()
	c := client.WithFieldValidation(plane.Client, "Strict")
	return c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("kubectl"),
		client.ForceOwnership)
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

// preciseWatcher has all fields that select changes.
const preciseWatcher = `
apiVersion: operator.kyma-project.io/v1beta2
kind: Watcher
metadata:
  name: precise
  namespace: default
spec:
  manager: lifecycle-manager
  resourceToWatch: {group: "", version: v1, resource: pods/resize, kind: Pod}
  labelsToWatch: {operator.kyma-project.io/watched-by: kyma}
  labelExpressionsToWatch: [{key: stage, operator: In, values: [live]}, {key: old, operator: DoesNotExist}]
  namespaceSelector:
    matchLabels: {team: blue}
    matchExpressions: [{key: stage, operator: NotIn, values: [test]}]
  matchConditions:
  - {name: not-me, expression: "request.userInfo.username != 'me'"}
  serviceInfo: {name: klm-events, namespace: kcp-system, port: 8082}
  gateway: {selector: {matchLabels: {a: b}}}
`

// TestWatcherAPI tests the validation of Watchers by an API server, without a controller. Then the
// definition is that of an older release.
func TestWatcherAPI(t *testing.T) {
	r := newRoutes(t, watcher.VirtualService)
	t.Run("wrong", func(t *testing.T) { wrongWatchersAreRefused(t, r.plane) })
	t.Run("as today", func(t *testing.T) { watchersOfTodayApplyUnchanged(t, r.plane) })
	t.Run("changed", func(t *testing.T) { watchersAreChanged(t, r.plane) })
	t.Run("in a table", func(t *testing.T) { watchersAreShownInATable(t, r.plane) })
	t.Run("upgraded", func(t *testing.T) {
		r.t = t
		definitionOfTodayIsUpgraded(r)
	})
	r.t = t
}

func wrongWatchersAreRefused(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	long := strings.Repeat("a", 64)
	many := make(map[string]any)
	for range 65 {
		many["l"+strings.Repeat("x", len(many)%60)+string(rune('a'+len(many)/60))] = "v"
	}
	read := func(text string) (value any) {
		rig.NoError(t, yaml.Unmarshal([]byte(text), &value))
		return value
	}
	const expressions = "gateway.selector.matchExpressions"
	// The path of a field within spec, with dots, unless it begins with metadata; nil removes it. The message names the
	// field, spec.<path> with a suffix unless it is given whole, and says the text.
	tests := []struct {
		name, path  string
		value       any
		field, says string
	}{
		{"port 0", "serviceInfo.port", int64(0), "", "greater than or equal to 1"},
		{"negative port", "serviceInfo.port", int64(-1), "", "greater than or equal to 1"},
		{"port 65536", "serviceInfo.port", int64(65536), "", "less than or equal to 65535"},
		{"port that wraps", "serviceInfo.port", int64(1<<32 + 80), "", ""},
		{"port as text", "serviceInfo.port", "8082", "", "expected numeric"},
		{"no port", "serviceInfo.port", nil, "", "Required"},
		{"service with a domain", "serviceInfo.name", "klm.kcp-system", "", "name of a service"},
		{"no name of the service", "serviceInfo.name", "", "", "name of a service"},
		{"long name of the service", "serviceInfo.name", long, "", "63"},
		{"namespace with a slash", "serviceInfo.namespace", "a/b", "", "name of a namespace"},
		{"long namespace", "serviceInfo.namespace", long, "", "63"},
		{"manager in capitals", "manager", "Lifecycle-Manager", "", "DNS-1123 label"},
		{"manager with a slash", "manager", "../../etc", "", "DNS-1123 label"},
		{"manager with a dot", "manager", "klm.v2", "", "DNS-1123 label"},
		{"manager with a line feed", "manager", "klm\n", "", "DNS-1123 label"},
		{"long manager", "manager", long, "", "63"},
		{"field data", "field", "data", "", `"spec", "status"`},
		{"empty field", "field", "", "", `"spec", "status"`},
		{"all resources", "resourceToWatch.resource", "*", "", "wildcard"},
		{"all subresources", "resourceToWatch.resource", "kymas/*", "", "subresource"},
		{"subresource status", "resourceToWatch.resource", "kymas/status", "", "which spec.field watches"},
		{"subresource of a subresource", "resourceToWatch.resource", "kymas/a/b", "", "one subresource"},
		{"labels of a subresource", "resourceToWatch.resource", "kymas/scale", "spec", "no labelsToWatch"},
		{"kind in lower case", "resourceToWatch.kind", "kyma", "", "upper camel case"},
		{"operator of a label", "labelExpressionsToWatch", read(`[{key: a, operator: In}]`), "[0].values", "In and NotIn"},
		{"label of a namespace", "namespaceSelector", read(`{matchLabels: {a b: c}}`), ".matchLabels", "label key"},
		{"name of a condition", "matchConditions", read(`[{name: changed, expression: "true"}]`), "[0].name", "neither persisted nor changed"},
		{"two conditions of one name", "matchConditions", read(`[{name: a, expression: "true"}, {name: a, expression: "false"}]`), "", "duplicate"},
		{"no expression", "matchConditions", read(`[{name: a, expression: ""}]`), "[0].expression", ""},
		{"a kind", "resourceToWatch.resource", "ConfigMap", "", "plural"},
		{"no resource", "resourceToWatch.resource", nil, "", "Required"},
		{"empty resource", "resourceToWatch.resource", "", "", "plural"},
		{"long resource", "resourceToWatch.resource", long, "", "plural"},
		{"all groups", "resourceToWatch.group", "*", "", "wildcard"},
		{"group in capitals", "resourceToWatch.group", "Apps", "", "one API group"},
		{"no group", "resourceToWatch.group", nil, "", "Required"},
		{"long group", "resourceToWatch.group", strings.Repeat("a.", 127), "", "253"},
		{"empty version", "resourceToWatch.version", "", "", "such as v1"},
		{"no version", "resourceToWatch.version", nil, "", "Required"},
		{"some versions", "resourceToWatch.version", "v*", "", `"*" for any`},
		{
			"what calls no webhooks", "resourceToWatch",
			read(`{group: admissionregistration.k8s.io, version: v1, resource: validatingwebhookconfigurations}`), ".resource", "no webhooks",
		},
		{"label key with a blank", "labelsToWatch", read(`{a b: c}`), "", "label key"},
		{"empty label key", "labelsToWatch", read(`{"": c}`), "", "label key"},
		{"label key of two parts", "labelsToWatch", read(`{a/b/c: c}`), "", "label key"},
		{"long label key", "labelsToWatch", map[string]any{long: "c"}, "", "label key"},
		{"label value of blanks", "labelsToWatch", read(`{a: b c}`), "[a]", "label value"},
		{"long label value", "labelsToWatch", map[string]any{"a": long}, ".a", "63"},
		{"label value of a number", "labelsToWatch", read(`{a: 1}`), ".a", "string"},
		{"too many labels", "labelsToWatch", many, "", "64"},
		{"no selector", "gateway.selector", nil, "", "Required"},
		{"empty selector", "gateway.selector", read(`{}`), "", "every gateway"},
		{"selector without labels", "gateway.selector.matchLabels", read(`{}`), "spec.gateway.selector", "every gateway"},
		{"selector that is text", "gateway.selector", "a=b", "", "object"},
		{"selector's key", "gateway.selector.matchLabels", read(`{-a: b}`), "", "label key"},
		{"selector's value", "gateway.selector.matchLabels", read(`{a: -b}`), "[a]", "label value"},
		{"unknown operator", expressions, read(`[{key: a, operator: Like, values: [b]}]`), "[0].operator", `"NotIn", "Exists", "DoesNotExist"`},
		{"In without values", expressions, read(`[{key: a, operator: In}]`), "[0].values", "In and NotIn"},
		{"Exists with values", expressions, read(`[{key: a, operator: Exists, values: [b]}]`), "[0].values", "none for Exists"},
		{"requirement's key", expressions, read(`[{key: a b, operator: Exists}]`), "[0].key", "label key"},
		{"requirement's value", expressions, read(`[{key: a, operator: In, values: [b c]}]`), "[0].values[0]", "label value"},
		{"a long name", "metadata.name", strings.Repeat("a", 165), "metadata.name", "at most 164"},
		{"a typing error", "labelsToWtach", read(`{a: b}`), "", ""},
		{"no spec", "", nil, "spec", "Required"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wrong := manifests.Object(t, goodWatcher)
			setField(t, wrong, tt.path, tt.value)
			err := apply(t, plane, wrong)
			field := tt.field
			if field == "" || field[0] == '.' || field[0] == '[' {
				field = "spec." + tt.path + field
			}
			rig.Fails(t, "apply", err, field, tt.says)
			t.Log(err)
		})
	}
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
	rig.NoError(t, unstructured.SetNestedField(o.Object, value, fields...))
}

func watchersOfTodayApplyUnchanged(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	files, err := filepath.Glob("testdata/watchers/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	for _, file := range files {
		text := rig.Must(os.ReadFile(file))
		for way, write := range map[string]func(*unstructured.Unstructured) error{
			"applied": func(o *unstructured.Unstructured) error { return apply(t, plane, o) },
			"created": func(o *unstructured.Unstructured) error {
				return client.WithFieldValidation(plane.Client, "Strict").Create(t.Context(), o)
			},
		} {
			t.Run(filepath.Base(file)+" "+way, func(t *testing.T) {
				sample := manifests.Object(t, string(text))
				sample.SetName(sample.GetName() + "-" + way)
				want := sample.DeepCopy()
				rig.NoError(t, write(sample))
				if specOf(t, want).Field == "" {
					setField(t, want, "field", "spec")
				}
				rig.Same(t, "meaning of the stored object", specOf(t, want), specOf(t, get(t, plane, want)))
			})
		}
	}
}

func get(t *testing.T, plane *apiserver.ControlPlane, like *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	return rig.Stored(t, plane.Client, client.ObjectKeyFromObject(like), like.DeepCopy())
}

// specOf is the spec as our types understand it.
func specOf(t *testing.T, o *unstructured.Unstructured) v1beta2.WatcherSpec {
	t.Helper()
	var stored v1beta2.Watcher
	rig.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &stored))
	if len(stored.Spec.LabelsToWatch) == 0 {
		stored.Spec.LabelsToWatch = nil
	}
	return stored.Spec
}

func watchersAreChanged(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	good := manifests.Object(t, goodWatcher)
	setField(t, good, "field", nil)
	rig.NoError(t, apply(t, plane, good.DeepCopy()))
	rig.Same(t, "default field", "spec", specOf(t, get(t, plane, good)).Field)
	for path, value := range map[string]any{
		"serviceInfo.port": int64(1), "manager": "other", "field": "status", "resourceToWatch.version": "v1",
		"labelsToWatch": map[string]any{}, "gateway.selector": map[string]any{"matchLabels": map[string]any{"a": ""}},
	} {
		setField(t, good, path, value)
		rig.NoError(t, apply(t, plane, good.DeepCopy()))
	}
	precise := manifests.Object(t, preciseWatcher)
	rig.NoError(t, apply(t, plane, precise.DeepCopy()))
	setField(t, precise, "field", "status")
	rig.Fails(t, "status of a subresource", apply(t, plane, precise), "spec.field")
	stored := get(t, plane, good)
	setField(t, stored, "gateway.selector", map[string]any{})
	rig.Fails(t, "an update that takes the selector away", plane.Client.Update(t.Context(), stored), "spec.gateway.selector")
}

// define replaces the definition of Watcher, and returns when the API server uses it: it takes or refuses an object with
// this field.
func (r *routes) define(definition client.Object, field string, value any, takes bool) {
	r.t.Helper()
	stored := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: definition.GetName()}}
	rig.Change(r.t, r.plane.Client, stored, func(stored *apiextensionsv1.CustomResourceDefinition) error {
		definition.SetResourceVersion(stored.ResourceVersion)
		return r.plane.Client.Update(r.t.Context(), definition)
	})
	rig.Eventually(r.t, rig.Patience, "the definition is in force", func() bool {
		probe := manifests.Object(r.t, goodWatcher)
		probe.SetName("probe")
		setField(r.t, probe, field, value)
		err := r.plane.Client.Create(r.t.Context(), probe, client.DryRunAll)
		return takes && err == nil || !takes && apierrors.IsInvalid(err)
	})
}

func watchersAreShownInATable(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	rig.NoError(t, apply(t, plane, manifests.Object(t, goodWatcher)))
	shown := rig.Kubectl(t, "--kubeconfig", plane.Kubeconfig, "get", "watchers", "kyma", "-o", "wide")
	want := `^NAME +MANAGER +RESOURCE +FIELD +STATE +AGE +GROUP +SERVICE +MESSAGE *
kyma +lifecycle-manager +kymas +spec +\S+ +operator\.kyma-project\.io +klm-events`
	if !regexp.MustCompile(want).MatchString(shown) {
		t.Errorf("kubectl shows\n%s\nwant a match of\n%s", shown, want)
	}
}

// definitionOfTodayIsUpgraded: today's clusters may have stored v1beta1, ports that are no
// ports, and states that this module does not write. One such Watcher must not stop the controller
// for the others, and can be mended.
func definitionOfTodayIsUpgraded(r *routes) {
	t := r.t
	for _, namespace := range []string{"default", "kcp-system"} {
		r.must(r.plane.Client.DeleteAllOf(t.Context(), &v1beta2.Watcher{}, client.InNamespace(namespace)))
	}
	r.applyYAML(istioGateway("good", "a.example.com"))
	for _, newer := range []bool{false, true} {
		r.define(today.Watchers(newer), "serviceInfo.port", int64(0), true)
	}
	for name, port := range map[string]int64{"huge": 1 << 40, "zero": 0} {
		w := manifests.Object(t, goodWatcher)
		w.SetName(name)
		setField(t, w, "manager", "manager-"+name)
		setField(t, w, "serviceInfo.port", port)
		r.must(r.plane.Client.Create(t.Context(), w))
		r.must(unstructured.SetNestedField(w.Object, "Unmanaged", "status", "state"))
		r.must(r.plane.Client.Status().Update(t.Context(), w))
	}
	wrong := manifests.Object(t, goodWatcher)
	setField(t, wrong, "serviceInfo.port", int64(0))
	setField(t, wrong, "manager", "Lifecycle_Manager")
	r.must(r.plane.Client.Create(t.Context(), wrong))
	r.define(manifests.Watchers(t), "field", "data", false)
	canBeMended(t, r.plane, get(t, r.plane, wrong))
	r.start()
	r.newWatcher("good", nil)
	r.await("good", "Ready", "RouteApplied")
	for _, name := range []string{"huge", "zero"} {
		r.await(name, "Error", "WatchInvalid", "spec.serviceInfo.port")
		rig.Same(t, "route of "+name, true, r.route(name) == nil)
	}
}

// canBeMended changes a Watcher with two mistakes that an older definition accepted.
func canBeMended(t *testing.T, plane *apiserver.ControlPlane, wrong *unstructured.Unstructured) {
	t.Helper()
	wrong.SetLabels(map[string]string{"touched": "true"})
	rig.NoError(t, plane.Client.Update(t.Context(), wrong))
	rig.NoError(t, unstructured.SetNestedField(wrong.Object, "Error", "status", "state"))
	rig.NoError(t, plane.Client.Status().Update(t.Context(), wrong))
	setField(t, wrong, "serviceInfo.port", int64(70000))
	rig.Fails(t, "another wrong port", plane.Client.Update(t.Context(), wrong), "spec.serviceInfo.port")
	setField(t, wrong, "serviceInfo.port", int64(8082))
	rig.NoError(t, plane.Client.Update(t.Context(), wrong)) // One of two former mistakes is corrected.
}
