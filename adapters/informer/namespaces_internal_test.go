package informer

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// One user with the right to create namespaces gives them as many labels as an API server takes.
// The agent keeps the labels that its watches select by, and nothing else of a namespace.
func TestLabelsOfNamespacesAreBounded(t *testing.T) {
	var watches []watch.Watch
	for n, selector := range []watch.Selector{
		{Labels: map[string]string{"stage": "prod"}},
		{Requirements: []watch.Requirement{{Key: "team", Operator: "Exists"}}},
		{},
	} {
		w := watch.Watch{
			Manager: "kyma", NamespaceSelector: selector,
			Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		}
		w.Name.Namespace = "kcp"
		w.Name.Name = fmt.Sprint("watch-", n)
		watches = append(watches, w)
	}

	accept := core.AcceptorFunc(func(core.Manager, core.WatchEvent) core.Outcome { return core.Accepted })
	s, err := New(&rest.Config{Host: "https://127.0.0.1:1"}, accept, watches, Options{})
	if err != nil {
		t.Fatal(err)
	}

	namespaces := s.followers[len(s.followers)-1]
	p := namespaces.partsOf(&resource{GroupVersionResource: namespaces.watch.Resource})

	var many strings.Builder

	for n := range 10_000 {
		fmt.Fprintf(&many, `"example.com/%d":%q,`, n, strings.Repeat("x", 63))
	}

	finalizers := strings.Repeat("x", mostKept/2)
	read, err := p.parseObject(fmt.Appendf(nil,
		`{"metadata":{"name":"n","resourceVersion":"7","labels":{%s"team":"a","stage":"prod"},"finalizers":[%q]}}`,
		many.String(), finalizers))
	if err != nil {
		t.Fatal(err)
	}
	if want := (labels.Set{"team": "a", "stage": "prod"}); !labels.Equals(read.labels, want) {
		t.Errorf("%d labels are kept, want %v", len(read.labels), want)
	}
	if size := len(read.digest.asJSON()); size > 100 {
		t.Errorf("%d bytes are kept beside the labels", size)
	}
}
