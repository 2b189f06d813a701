package subresources

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// watched are the Watchers of the table.
//
//nolint:misspell // Names of Kubernetes.
const watched = `{metadata: {name: deployments}, spec: {resourceToWatch: {group: apps, version: v1, resource: deployments}, labelsToWatch: {watched: "true"}}}
---
{metadata: {name: widgets}, spec: {resourceToWatch: {group: example.com, version: "*", resource: widgets, kind: Widget}}}
---
{metadata: {name: gadgets}, spec: {resourceToWatch: {group: example.com, version: v1, resource: gadgets}}}
---
{metadata: {name: plants}, spec: {resourceToWatch: {group: example.com, version: v1, resource: plants}}}
---
{metadata: {name: configmaps}, spec: {resourceToWatch: {group: "", version: v1, resource: configmaps}}}
---
{metadata: {name: secrets}, spec: {resourceToWatch: {group: "", version: v1, resource: secrets}}}
---
{metadata: {name: namespaces}, spec: {resourceToWatch: {group: "", version: v1, resource: namespaces}}}
---
{metadata: {name: pods}, spec: {resourceToWatch: {group: "", version: v1, resource: pods}}}
---
{metadata: {name: finalize}, spec: {resourceToWatch: {group: "", version: v1, resource: namespaces/finalize}}}
---
{metadata: {name: eviction}, spec: {resourceToWatch: {group: "", version: v1, resource: pods/eviction}}}
---
{metadata: {name: exec}, spec: {resourceToWatch: {group: "", version: v1, resource: pods/exec}}}
---
{metadata: {name: binding}, spec: {resourceToWatch: {group: "", version: v1, resource: pods/binding}}}
---
{metadata: {name: token}, spec: {resourceToWatch: {group: "", version: v1, resource: serviceaccounts/token}}}`

const podSpec = `{"containers":[{"name":"a","image":"a"}]}`

func deploymentOf(labels string) string {
	return `"metadata":{"name":"%s","labels":{` + labels + `}},"spec":{"selector":{"matchLabels":{"a":"b"}},` +
		`"template":{"metadata":{"labels":{"a":"b"}},"spec":` + podSpec + `}}`
}

// step is a write and the events that it must cause, with commas.
type step struct {
	name   string
	write  write
	events string
	note   string
}

func TestTable(t *testing.T) {
	s := newScene(t)
	failures := s.conditionErrors()
	s.register(everything, watches(t, everything, watched), admission.ConfigurationOptions{NoMatchConditions: true})
	s.register(selected, watches(t, selected, watched), admission.ConfigurationOptions{})
	s.registerDenial()
	s.inform(watches(t, informed, watched))
	otherwise := seenOtherwise()
	var table strings.Builder
	fmt.Fprintf(&table, "\n%-52s %10s %10s  %s\n", "WRITE", "CALLS", "WITHOUT", "EVENTS")
	for _, step := range steps() {
		t.Run(step.name, func(t *testing.T) {
			s.t = t
			defer func() { s.t = t }()
			s.updateCaches()
			s.taken()
			step.write(s)
			events, called := s.taken()
			for _, manager := range []core.Manager{selected, everything} {
				if got := strings.Join(events[manager], ", "); got != step.events {
					t.Errorf("events for %s: %q, want %q", manager, got, step.events)
				}
			}
			seen, other := otherwise[step.name]
			if !other {
				seen = step.events
			}
			s.sees(seen)
			if want := len(events[selected]); called[selected] != want {
				t.Errorf("%d calls with match conditions, want %d", called[selected], want)
			}
			fmt.Fprintf(&table, "%-52s %10d %10d  %s%s\n", step.name, called[selected], called[everything],
				strings.Join(events[selected], ", "), step.note)
		})
	}
	s.t = t
	t.Log(table.String())
	if n := s.conditionErrors() - failures; n != 0 {
		t.Errorf("%v conditions could not be evaluated, want none", n)
	}
}

//nolint:misspell // Names of Kubernetes.
func steps() []step {
	deployment, widget, gadget := namespaced("apps", "deployments", "web"), namespaced("example.com", "widgets", "w"),
		namespaced("example.com", "gadgets", "g")
	other := namespaced("apps", "deployments", "other")
	plant := "/apis/example.com/v1/plants"
	const changed = "UPDATE Deployment.v1.apps default/web"
	changedTo := func(replicas int) string { return fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas) }
	return []step{
		{
			"Deployment: create",
			create(namespaced("apps", "deployments", ""), object("apps/v1", "Deployment", "web", deploymentOf(`"watched":"true"`))),
			"CREATE Deployment.v1.apps default/web", "",
		},
		{"Deployment: kubectl scale", kubectl("scale", "deployment", "web", "--replicas=3"), changed, ""},
		{"Deployment: patch of scale", patch(deployment+"/scale", changedTo(4)), changed, ""},
		{"Deployment: update of scale, as autoscalers do", replace(deployment+"/scale", `"replicas":4`, `"replicas":5`), changed, ""},
		{"Deployment: patch of scale, the same number", patch(deployment+"/scale", changedTo(5)), "", ""},
		{"Deployment: dry run of scale", patch(deployment+"/scale?dryRun=All", changedTo(6)), "", ""},
		{
			"Deployment: apply, a conflict",
			refused(http.MethodPatch, deployment+"?fieldManager=other", applyPatch, `{"apiVersion":"apps/v1","kind":"Deployment","spec":{"replicas":9}}`, http.StatusConflict),
			"", "",
		},
		{
			"Deployment: apply, forced",
			request(http.MethodPatch, deployment+"?fieldManager=other&force=true", applyPatch, `{"apiVersion":"apps/v1","kind":"Deployment","spec":{"replicas":9}}`),
			changed, "",
		},
		{
			"Deployment: rejected by another webhook",
			refused(http.MethodPatch, deployment, mergePatch, `{"metadata":{"labels":{"denied":"true"}}}`, http.StatusForbidden),
			changed, " (a superfluous look)",
		},
		{"Deployment: delete", remove(deployment), "DELETE Deployment.v1.apps default/web", ""},
		{
			"Deployment without the label: create",
			create(namespaced("apps", "deployments", ""), object("apps/v1", "Deployment", "other", deploymentOf(""))),
			"", "",
		},
		{
			"Deployment without the label: scale", patch(other+"/scale", changedTo(2)),
			"UPDATE Deployment.v1.apps default/other", " (a Scale shows no labels)",
		},
		{"Deployment: the label added", patch(other, `{"metadata":{"labels":{"watched":"true"}}}`), "UPDATE Deployment.v1.apps default/other", ""},
		{"Deployment: the label removed", patch(other, `{"metadata":{"labels":null}}`), "UPDATE Deployment.v1.apps default/other", ""},
		{
			"custom resource: create",
			create(namespaced("example.com", "widgets", ""), object("example.com/v1", "Widget", "w", `"metadata":{"name":"%s","finalizers":["example.com/f"]},"spec":{"replicas":1}`)),
			"CREATE Widget.v1.example.com default/w", "",
		},
		{"custom resource: scale", patch(widget+"/scale", changedTo(2)), "UPDATE Widget.v1.example.com default/w", ""},
		{"custom resource: annotation", patch(widget, `{"metadata":{"annotations":{"a":"b"}}}`), "", ""},
		{"custom resource: owner", patch(widget, owner), "UPDATE Widget.v1.example.com default/w", ""},
		{"custom resource: status", patch(widget+"/status", `{"status":{"a":1}}`), "", ""},
		{"custom resource: delete, held by a finalizer", remove(widget), "DELETE Widget.v1.example.com default/w", ""},
		{
			"custom resource: the last finalizer", patch(widget, `{"metadata":{"finalizers":null}}`),
			"UPDATE Widget.v1.example.com default/w", "",
		},
		{
			"custom resource, kind not in the Watcher: scale",
			all(create(namespaced("example.com", "gadgets", ""), object("example.com/v1", "Gadget", "g", `"metadata":{"name":"%s"},"spec":{"replicas":1}`)), patch(gadget+"/scale", changedTo(2))),
			"CREATE Gadget.v1.example.com default/g, UPDATE Scale.v1.autoscaling default/g", "",
		},
		{
			"cluster-scoped custom resource: create",
			create(plant, object("example.com/v1", "Plant", "p", `"metadata":{"name":"%s"},"spec":{"a":1}`)),
			"CREATE Plant.v1.example.com /p", "",
		},
		{"cluster-scoped custom resource: spec", patch(plant+"/p", `{"spec":{"a":2}}`), "UPDATE Plant.v1.example.com /p", ""},
		{"cluster-scoped custom resource: status", patch(plant+"/p/status", `{"status":{"a":2}}`), "", ""},
		{"cluster-scoped custom resource: delete", remove(plant + "/p"), "DELETE Plant.v1.example.com /p", ""},
		{
			"ConfigMap: create", create(ofCore("configmaps", ""), `{"metadata":{"name":"c"},"data":{"a":"b"}}`),
			"CREATE ConfigMap.v1. default/c", "",
		},
		{"ConfigMap: annotation", patch(ofCore("configmaps", "c"), note), "UPDATE ConfigMap.v1. default/c", ""},
		{
			"ConfigMaps: delete a collection",
			all(create(ofCore("configmaps", ""), `{"metadata":{"name":"d"}}`), request(http.MethodDelete, ofCore("configmaps", "")+"?fieldSelector=metadata.name!=kube-root-ca.crt", plainJSON, "")),
			"CREATE ConfigMap.v1. default/d, DELETE ConfigMap.v1. default/c, DELETE ConfigMap.v1. default/d", "",
		},
		{
			"Secret: create and change",
			all(create(ofCore("secrets", ""), `{"metadata":{"name":"s"}}`), patch(ofCore("secrets", "s"), `{"stringData":{"a":"b"}}`)),
			"CREATE Secret.v1. default/s, UPDATE Secret.v1. default/s", "",
		},
		{
			"Namespace: create and label",
			all(create("/api/v1/namespaces", `{"metadata":{"name":"n"}}`), patch("/api/v1/namespaces/n", `{"metadata":{"labels":{"a":"b"}}}`)),
			"CREATE Namespace.v1. /n, UPDATE Namespace.v1. /n", "",
		},
		{"Namespace: delete", remove("/api/v1/namespaces/n"), "DELETE Namespace.v1. /n", ""},
		{
			"namespaces/finalize",
			request(http.MethodPut, "/api/v1/namespaces/n/finalize", plainJSON, `{"metadata":{"name":"n"},"spec":{"finalizers":[]}}`),
			"UPDATE Namespace.v1. /n", "",
		},
		{"Pod: create", create(ofCore("pods", ""), `{"metadata":{"name":"p"},"spec":`+podSpec+`}`), "CREATE Pod.v1. default/p", ""},
		{
			"pods/exec", refused(http.MethodPost, ofCore("pods", "p")+"/exec?command=ls", plainJSON, "", http.StatusBadRequest),
			"CONNECT Pod.v1. default/p", "",
		},
		{
			"pods/binding",
			create(ofCore("pods", "p")+"/binding", `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"p"},"target":{"kind":"Node","name":"node"}}`),
			"CREATE Pod.v1. default/p", "",
		},
		{
			"pods/eviction, dry run",
			create(ofCore("pods", "p")+"/eviction?dryRun=All", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"p"}}`),
			"", "",
		},
		{
			"pods/eviction",
			create(ofCore("pods", "p")+"/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"p"}}`),
			"CREATE Pod.v1. default/p", "",
		},
		{
			"serviceaccounts/token",
			all(create(ofCore("serviceaccounts", ""), `{"metadata":{"name":"sa"}}`), create(ofCore("serviceaccounts", "sa")+"/token", `{"spec":{}}`)),
			"CREATE ServiceAccount.v1. default/sa", "",
		},
	}
}

// seenOtherwise has the events of an informer where they are not those of the webhook: it sees what was
// committed, with the labels, and no subresource by itself.
//
//nolint:misspell // Names of Kubernetes.
func seenOtherwise() map[string]string {
	const widget, pod = "Widget.v1.example.com default/w", "UPDATE Pod.v1. default/p"
	return map[string]string{
		"Deployment: rejected by another webhook":         "",
		"Deployment without the label: scale":             "",
		"Deployment: the label added":                     "CREATE Deployment.v1.apps default/other",
		"Deployment: the label removed":                   "DELETE Deployment.v1.apps default/other",
		"custom resource: delete, held by a finalizer":    "UPDATE " + widget,
		"custom resource: the last finalizer":             "DELETE " + widget,
		"custom resource, kind not in the Watcher: scale": "CREATE Gadget.v1.example.com default/g, UPDATE Gadget.v1.example.com default/g",
		"Namespace: delete":                               "UPDATE Namespace.v1. /n",
		"namespaces/finalize":                             "DELETE Namespace.v1. /n",
		"pods/exec":                                       "",
		"pods/binding":                                    pod,
		"pods/eviction":                                   pod,
		"serviceaccounts/token":                           "",
	}
}

// object returns an object in JSON of members with a verb for the name.
func object(apiVersion, kind, name, members string) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,`, apiVersion, kind) + fmt.Sprintf(members, name) + "}"
}
