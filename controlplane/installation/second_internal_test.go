package installation

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
)

func TestForgetKeepsOtherRuntimes(t *testing.T) {
	p := newPlace(t, Options{})
	i := p.installer
	for _, id := range []core.RuntimeID{"prod", "beside"} {
		i.memory.records.store(id, record{})
		i.memory.restarts.store(id, restarted{})
		i.memory.contests.store(id, "text")
	}

	i.Forget("prod")
	for name, values := range map[string]*sync.Map{
		"records": &i.memory.records.values, "restarts": &i.memory.restarts.values, "contests": &i.memory.contests.values,
	} {
		_, prod := values.Load(core.RuntimeID("prod"))
		_, beside := values.Load(core.RuntimeID("beside"))
		if prod || !beside {
			t.Errorf("%s: the runtime is remembered: %t, and another one: %t, want that one only", name, prod, beside)
		}
	}
}

// The ConfigMap alone names the runtime. That of another runtime must stay, with all objects.
func TestUninstallLeavesTheAgentOfAnotherRuntime(t *testing.T) {
	p := newPlace(t, Options{})
	p.settle()
	live := p.configMap()
	live.Annotations[p.installer.opts.key(annotationRuntime)] = "another"

	if err := p.client.Update(t.Context(), live); err != nil {
		t.Fatal(err)
	}

	p.writes = nil
	status, err := p.installer.Uninstall(t.Context(), p.runtime)
	if err != nil || status.State != Removed || len(p.writes) > 0 {
		t.Errorf("got %+v, %v and the writes %v, want none", status, err, p.writes)
	}
}

// The weight of what a call may read follows the watches.
func TestTheWeightFollowsTheWatches(t *testing.T) {
	p := newPlace(t, Options{})
	weigh := func() int64 { return p.installer.budgets.weighOwn(p.installer.rendererOf(&p.runtime)) }
	few := weigh()

	for n := range 20 {
		p.runtime.Watches = append(p.runtime.Watches, watchOf(core.Manager(fmt.Sprintf("more-%d", n))))
	}

	many := weigh()
	p.runtime.Watches = p.runtime.Watches[:2]
	if again := weigh(); few <= 0 || many < 2*few || again != few {
		t.Errorf("weights %d, %d and %d, want a larger one for more watches", few, many, again)
	}
}

// paged is a client that lists one namespace in each page.
type paged struct {
	client.Client

	pages int
}

func (p *paged) List(_ context.Context, into client.ObjectList, opts ...client.ListOption) error {
	list := into.(*metav1.PartialObjectMetadataList)
	number := 0
	_, _ = fmt.Sscan((&client.ListOptions{}).ApplyOptions(opts).Continue, &number)
	list.Items = []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("namespace-", number)}}}

	if number+1 < p.pages {
		list.Continue = strconv.Itoa(number + 1)
	}

	return nil
}

// Each page of the namespaces is read, up to a bound.
func TestEachPageOfNamespacesIsRead(t *testing.T) {
	p := newPlace(t, Options{})
	for pages, want := range map[int]int{1: 1, 3: 3, namespacePages + 5: namespacePages} {
		v := p.installer.newVisit(&Runtime{ID: "prod", Client: &paged{pages: pages}})
		all, err := v.listNamespaces(t.Context())
		if err != nil || len(all) != want || all[want-1].Name != fmt.Sprint("namespace-", want-1) {
			t.Errorf("%d namespaces of %d pages, %v, want %d", len(all), pages, err, want)
		}
	}
}

func notIn(key, value string) metav1.LabelSelectorRequirement {
	return metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpNotIn, Values: []string{value}}
}

func namespaceOf(name string, labels map[string]string) metav1.PartialObjectMetadata {
	return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

// Two webhooks have different additions. A namespace that we exclude ourselves is not lost by them.
func TestAdditionsOfTwoWebhooks(t *testing.T) {
	ours := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{notIn("ours", "yes")}}
	namespaces := []metav1.PartialObjectMetadata{
		namespaceOf("kept", nil), namespaceOf("first", map[string]string{"a": "1"}), namespaceOf("second", map[string]string{"b": "2"}),
		namespaceOf("excluded", map[string]string{"a": "1", "ours": "yes"}), namespaceOf("kube-system", map[string]string{"a": "1"}),
	}

	e := exclusions{by: make(map[string][]string)}
	var additions []addition
	for _, more := range []metav1.LabelSelectorRequirement{notIn("a", "1"), notIn("b", "2"), notIn("a", "1")} {
		additions = append(additions, addition{
			webhook: map[string]any{"name": "w"}, ours: ours, more: []metav1.LabelSelectorRequirement{more},
		})
	}

	e.addAll(additions, &unstructured.Unstructured{}, namespaces)
	if lost := strings.Join(e.lost, " "); lost != "first second" {
		t.Errorf("lost are %q, want first and second", lost)
	}
	if texts := e.by["unknown"]; len(texts) != 2 {
		t.Errorf("the additions are %q, want two", texts)
	}
}

// Ten lost namespaces are named, and an eleventh is only counted.
func TestTheBoundOfNamedNamespaces(t *testing.T) {
	for _, n := range []int{mostNamed, mostNamed + 1} {
		e := exclusions{by: map[string][]string{"m": {"text"}}}
		for number := range n {
			e.lost = append(e.lost, fmt.Sprintf("namespace-%d-", number))
		}

		status := e.judgeReady(Status{State: Ready})
		named := strings.Count(status.Message, "namespace-")
		if named != mostNamed || strings.Contains(status.Message, "…") != (n > mostNamed) || status.State != Failed {
			t.Errorf("%d lost namespaces give %+v", n, status)
		}
	}
}

// A contested text does not make other texts, or other runtimes, contested.
func TestAContestIsOfOneText(t *testing.T) {
	p := newPlace(t, Options{})
	p.installer.memory.contests.store("prod", "first")
	for id, texts := range map[core.RuntimeID]map[string]bool{
		"prod": {"first": true, "second": false}, "beside": {"first": false},
	} {
		for text, want := range texts {
			if have := p.installer.newVisit(&Runtime{ID: id}).isContested(text); have != want {
				t.Errorf("%s: %q is contested: %t, want %t", id, text, have, want)
			}
		}
	}
}

// Others may shorten the timeout of a webhook, and may not lengthen it.
func TestTheTimeoutOfOthers(t *testing.T) {
	configuration := func(timeout int64) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"webhooks": []any{map[string]any{"name": "w", "timeoutSeconds": timeout}},
		}}
	}
	for live, want := range map[int64]int64{3: 3, 10: 10, 30: 10, 0: 10} {
		ours := configuration(10)
		keepShorterTimeouts(configuration(live), ours)
		fields, _ := webhooksOf(ours)[0].(map[string]any)
		if have := fields["timeoutSeconds"]; have != want {
			t.Errorf("a timeout of others of %d s makes ours %v, want %d", live, have, want)
		}
	}
}

// A Deployment with three replicas is not ready with one that is new.
func TestARolloutOfThree(t *testing.T) {
	three := int32(3)
	for updated, want := range map[int32]State{1: Progressing, 2: Progressing, 3: Ready} {
		d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &three}}
		d.Status = appsv1.DeploymentStatus{Replicas: updated, UpdatedReplicas: updated, AvailableReplicas: 1}
		if status := rollout(d); status.State != want || status.Replicas != three {
			t.Errorf("%d of 3 are new: %+v, want %s", updated, status, want)
		}
	}
}

// One of two EndpointSlices has an endpoint that answers, whatever their order is.
func TestAnyOfTwoEndpointSlicesAnswers(t *testing.T) {
	p := newPlace(t, Options{})
	slice := func(ready bool) unstructured.Unstructured {
		return unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
			"endpoints": []any{map[string]any{"addresses": []any{"192.0.2.1"}, "conditions": map[string]any{"ready": ready}}},
		}}
	}

	v := p.installer.newVisit(&Runtime{ID: "prod"})
	for _, tt := range [][]bool{{true, false}, {false, true}, {false, false}} {
		list := &unstructured.UnstructuredList{Items: []unstructured.Unstructured{slice(tt[0]), slice(tt[1])}}
		have, err := v.hasEndpoint(list)
		if err != nil || have != (tt[0] || tt[1]) {
			t.Errorf("slices that are ready %v: %t, %v", tt, have, err)
		}
	}
}
