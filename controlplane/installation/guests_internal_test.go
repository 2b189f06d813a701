package installation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// documents answers with the text of each path, and with an error for any other one.
type documents struct {
	client.Client

	texts map[string]string
}

var errNoAnswer = errors.New("no answer")

func (d documents) ReadJSON(ctx context.Context, path string, into any) error {
	path, _, _ = strings.Cut(path, "?")
	text, found := d.texts[path]
	if !found {
		return fmt.Errorf("%s: %w", path, errNoAnswer)
	}
	if text == "hangs" {
		<-ctx.Done()
		return ctx.Err()
	}

	return json.Unmarshal([]byte(text), into)
}

// A namespace ends only if each kind that may hold objects was listed, and has none. The control is
// an API server with objects of the platform only.
func TestEachKindMayHaveGuests(t *testing.T) {
	t.Parallel()

	const resource = `{"name": %q, "kind": %q, "namespaced": %t, "verbs": [%s]}`
	kinds := func(resources ...string) string {
		return `{"kind": "APIResourceList", "resources": [` + strings.Join(resources, ",") + `]}`
	}

	list := func(items ...string) string {
		return `{"kind": "ThingList", "metadata": {}, "items": [` + strings.Join(items, ",") + `]}`
	}

	const named = `{"metadata": {"name": %q}}`
	const controlled = `{"metadata": {"name": "mine", "ownerReferences": [
		{"apiVersion": %q, "kind": %q, "name": "a", "uid": "1", "controller": true}]}}`
	const all = `"list", "delete"`
	honest := map[string]string{
		"/apis": `{"kind": "APIGroupList", "groups": [{"name": "shop.example.com", "versions": [
			{"groupVersion": "shop.example.com/v1"}, {"groupVersion": "shop.example.com/v2"}]}]}`,
		"/api/v1": kinds(fmt.Sprintf(resource, "configmaps", "ConfigMap", true, all), fmt.Sprintf(resource, "events", "Event", true, all),
			fmt.Sprintf(resource, "nodes", "Node", false, all), fmt.Sprintf(resource, "pods/log", "Pod", true, all)),
		"/api/v1/namespaces/" + Name + "/configmaps": list(fmt.Sprintf(named, "kube-root-ca.crt")),
		"/apis/shop.example.com/v1": kinds(fmt.Sprintf(resource, "orders", "Order", true, all),
			fmt.Sprintf(resource, "sums", "Sum", true, `"get"`)),
		"/apis/shop.example.com/v2":                                kinds(fmt.Sprintf(resource, "carts", "Cart", true, all)),
		"/apis/shop.example.com/v1/namespaces/" + Name + "/orders": list(),
		"/apis/shop.example.com/v2/namespaces/" + Name + "/carts":  list(),
	}

	for name, row := range map[string]struct {
		path, text string
		want       string // part of a guest or of an error, "" if there is none
	}{
		"nothing of others":      {"", "", ""},
		"a custom resource":      {"/apis/shop.example.com/v1/namespaces/" + Name + "/orders", list(fmt.Sprintf(named, "mine")), "Order mine"},
		"one of another version": {"/apis/shop.example.com/v2/namespaces/" + Name + "/carts", list(fmt.Sprintf(named, "a")), "Cart a"},
		"one that ends":          {"/apis/shop.example.com/v1/namespaces/" + Name + "/orders", list(`{"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}}`), ""},
		"one of a cluster-wide controller": {
			"/apis/shop.example.com/v1/namespaces/" + Name + "/orders",
			list(fmt.Sprintf(controlled, "shop.example.com/v1", "Mall")), "Order mine",
		},
		"one of a controller of another group": {
			"/apis/shop.example.com/v1/namespaces/" + Name + "/orders",
			list(fmt.Sprintf(controlled, "mall.example.com/v1", "Cart")), "Order mine",
		},
		"one of a controller in the namespace": {
			"/apis/shop.example.com/v1/namespaces/" + Name + "/orders",
			list(fmt.Sprintf(controlled, "shop.example.com/v3", "Cart")), "",
		},
		"one of a ConfigMap": {
			"/apis/shop.example.com/v1/namespaces/" + Name + "/orders",
			list(fmt.Sprintf(controlled, "v1", "ConfigMap")), "",
		},
		"an endless list":               {"/apis/shop.example.com/v1/namespaces/" + Name + "/orders", `{"kind": "OrderList", "metadata": {"continue": "a"}, "items": []}`, "more than a page of Order"},
		"groups that are missing":       {"/apis", "", "groups of the API server"},
		"groups of a proxy":             {"/apis", `{}`, "want an APIGroupList"},
		"kinds that are missing":        {"/apis/shop.example.com/v2", "", "shop.example.com/v2"},
		"no kinds, but a Status":        {"/apis/shop.example.com/v2", `{"kind": "Status"}`, "want an APIResourceList"},
		"kinds without an answer":       {"/apis/shop.example.com/v1", "hangs", "shop.example.com/v1"},
		"a list that is refused":        {"/apis/shop.example.com/v1/namespaces/" + Name + "/orders", "", "kind Order"},
		"a list without an answer":      {"/apis/shop.example.com/v1/namespaces/" + Name + "/orders", "hangs", "kind Order"},
		"a Status in place of a list":   {"/apis/shop.example.com/v1/namespaces/" + Name + "/orders", `{"kind": "Status"}`, "want a list"},
		"more versions than are listed": {"/apis", versionsOf(mostVersions + 1), "versions of groups"},
		"more kinds than are listed":    {"/apis/shop.example.com/v1", kindsOf(mostKinds + 1), "kinds"},
	} {
		synctest.Test(t, func(t *testing.T) {
			texts := maps.Clone(honest)
			if row.path != "" {
				texts[row.path] = row.text
			}
			if row.path != "" && row.text == "" {
				delete(texts, row.path)
			}

			i, err := New(Parts{Image: "image", ControlPlane: "control-plane.example.com:443"}, Options{})
			if err != nil {
				t.Fatal(err)
			}

			var log bytes.Buffer
			i.opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
			v := i.newVisit(&Runtime{ID: "prod", Client: documents{texts: texts}})
			guest, err := v.findGuest(t.Context())

			if row.want == "" {
				if guest != "" || err != nil {
					t.Errorf("%s: %q, %v, want no guest", name, guest, err)
				}
				return
			}
			if said := fmt.Sprint(guest, err); !strings.Contains(said, row.want) {
				t.Errorf("%s: %s, want %q", name, said, row.want)
			}

			v.found.namespace = v.renderNamespace()
			status, err := v.removeNamespace(t.Context())
			if err != nil || status.State != Removed || !strings.Contains(log.String(), row.want) {
				t.Errorf("%s: %+v, %v: the log is %s, want that the namespace stays, and %q", name, status, err, &log, row.want)
			}
		})
	}
}

// ending loses one kind when its objects are listed, as with a definition that ends after the
// discovery.
type ending struct {
	documents

	list, kinds, without string
}

func (e ending) ReadJSON(ctx context.Context, path string, into any) error {
	if list, _, _ := strings.Cut(path, "?"); list == e.list {
		e.texts[e.kinds] = e.without
	}
	return e.documents.ReadJSON(ctx, path, into)
}

// A kind that ends between the discovery and its list has no objects. The control is a kind that is
// still served: its list must not fail.
func TestAKindThatEndsHasNoGuests(t *testing.T) {
	t.Parallel()

	const (
		version = "/apis/shop.example.com/v1"
		orders  = `{"kind": "APIResourceList", "resources": [{"name": "orders", "kind": "Order", "namespaced": true, "verbs": ["delete"]}]}`
		none    = `{"kind": "APIResourceList", "resources": []}`
	)
	for name, row := range map[string]struct {
		without string
		fails   bool
	}{
		"still served":                {orders, true},
		"no longer served":            {none, false},
		"the version does not answer": {"hangs", true},
	} {
		synctest.Test(t, func(t *testing.T) {
			reader := ending{documents{texts: map[string]string{
				"/apis":   `{"kind": "APIGroupList", "groups": [{"name": "shop.example.com", "versions": [{"groupVersion": "shop.example.com/v1"}]}]}`,
				"/api/v1": none, version: orders,
			}}, version + "/namespaces/a/orders", version, row.without}

			guest, err := FindGuest(t.Context(), reader, "a", nil)
			if (err != nil) != row.fails || guest != "" {
				t.Errorf("%s: guest %q, error %v", name, guest, err)
			}
		})
	}

	// The group ends with its last definition, before the kinds of its version are read.
	ended := documents{texts: map[string]string{"/apis": `{"kind": "APIGroupList"}`}}
	if kinds, err := kindsAt(t.Context(), ended, version); err != nil || len(kinds) > 0 {
		t.Errorf("kinds %v, error %v of a group that has ended, want none", kinds, err)
	}
}

func versionsOf(n int) string {
	group := metav1.APIGroup{Name: "a"}
	for i := range n {
		group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: fmt.Sprint("a/v", i)})
	}

	text, _ := json.Marshal(metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList"}, Groups: []metav1.APIGroup{group}})
	return string(text)
}

func kindsOf(n int) string {
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList"}}
	for i := range n {
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: fmt.Sprint("things", i), Kind: "Thing", Namespaced: true, Verbs: metav1.Verbs{"delete"},
		})
	}

	text, _ := json.Marshal(list)
	return string(text)
}

// A client without documents cannot see custom resources.
func TestANamespaceStaysWithoutDiscovery(t *testing.T) {
	t.Parallel()

	i, err := New(Parts{Image: "image", ControlPlane: "control-plane.example.com:443"}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.newVisit(&Runtime{ID: "prod", Client: struct{ client.Client }{}}).findGuest(t.Context()); !errors.Is(err, errNoDocuments) {
		t.Errorf("error %v, want %v", err, errNoDocuments)
	}
}
