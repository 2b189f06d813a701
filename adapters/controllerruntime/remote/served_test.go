package remote_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
)

// An API server answers with a page, as a proxy does, once it serves a kind no more. Only its own
// discovery shows the difference.
func TestAKindThatIsServedNoMore(t *testing.T) {
	t.Parallel()

	kind := schema.GroupVersionKind{Group: "g", Version: "v1", Kind: "Thing"}
	group := metav1.APIGroup{Name: "g", Versions: []metav1.GroupVersionForDiscovery{{GroupVersion: "g/v1", Version: "v1"}}}
	groups := func(all ...metav1.APIGroup) any {
		return metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList"}, Groups: all}
	}
	resources := func(kinds ...string) any {
		list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList"}}
		for _, kind := range kinds {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: "things", Kind: kind})
		}
		return list
	}

	for name, tt := range map[string]struct {
		answers map[string]any
		noMatch bool
	}{
		"a page of a proxy for everything":         {nil, false},
		"the group is gone":                        {map[string]any{"/apis": groups()}, true},
		"the kind is gone":                         {map[string]any{"/apis": groups(group), "/apis/g/v1": resources("Other")}, true},
		"the kind is there, and a proxy hides it":  {map[string]any{"/apis": groups(group), "/apis/g/v1": resources("Thing")}, false},
		"a proxy answers JSON that is no document": {map[string]any{"/apis": map[string]string{"error": "none"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				answer, known := tt.answers[r.URL.Path]
				if !known {
					http.NotFound(w, r)
					return
				}

				w.Header().Set("Content-Type", "application/json")
				_ = json.NewEncoder(w).Encode(answer)
			}))
			defer server.Close()

			mapper := meta.NewDefaultRESTMapper(nil)
			mapper.Add(kind, meta.RESTScopeRoot)
			reader, err := remote.NewClient(&rest.Config{Host: server.URL}, client.Options{Mapper: mapper})
			if err != nil {
				t.Fatal(err)
			}

			object := &metav1.PartialObjectMetadata{}
			object.SetGroupVersionKind(kind)
			err = reader.Get(t.Context(), client.ObjectKey{Name: "x"}, object)
			if err == nil || client.IgnoreNotFound(err) == nil || meta.IsNoMatchError(err) != tt.noMatch {
				t.Errorf("Get = %v: NoMatch is %t, want %t, and never NotFound", err, meta.IsNoMatchError(err), tt.noMatch)
			}
		})
	}
}
