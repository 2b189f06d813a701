package remote_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
)

// A token of a list is kept and sent back, so it is bounded more than an answer: in a page, and in
// the error after the former token has expired. The controls are tokens as API servers make them.
func TestTokensOfListsAreBounded(t *testing.T) {
	t.Parallel()

	const (
		page    = `{"kind":"ThingList","apiVersion":"v1","metadata":{"continue":%q},"items":[]}`
		expired = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"metadata":{"continue":%q}}`
	)
	usual := strings.Repeat("a", 1000)
	large := strings.Repeat("a", 16<<10) // Error answers have a lower bound than pages.
	for name, tt := range map[string]struct {
		status       int
		body, token  string
		large, fails bool
	}{
		"control: a page":       {http.StatusOK, page, usual, false, false},
		"control: it expired":   {http.StatusGone, expired, usual, false, true},
		"a large one":           {http.StatusOK, page, large, true, true},
		"a large one in error":  {http.StatusGone, expired, large, true, true},
		"control: the last one": {http.StatusOK, page, "", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(tt.status)
				_, _ = fmt.Fprintf(w, tt.body, tt.token)
			}))
			defer server.Close()

			kind := schema.GroupVersionKind{Version: "v1", Kind: "Thing"}
			mapper := meta.NewDefaultRESTMapper(nil)
			mapper.Add(kind, meta.RESTScopeRoot)
			reader, err := remote.NewClient(&rest.Config{Host: server.URL}, client.Options{Mapper: mapper})
			if err != nil {
				t.Fatal(err)
			}

			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "ThingList"})
			err = reader.List(t.Context(), list)
			if (err != nil) != tt.fails || errors.Is(err, remote.ErrLargeAnswer) != tt.large {
				t.Errorf("List = %.200v, want an error: %t, and ErrLargeAnswer: %t", err, tt.fails, tt.large)
			}
			if len(list.GetContinue()) > len(usual) || strings.Contains(fmt.Sprint(err), usual) {
				t.Error("a large token is left in the list or in the error")
			}
		})
	}
}
