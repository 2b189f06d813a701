package admission_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// A list of managers may change while reviews come.
func TestServesDecidesForEachReview(t *testing.T) {
	t.Parallel()
	var served atomic.Bool
	acceptor := core.AcceptorFunc(func(core.Manager, core.WatchEvent) core.Outcome { return core.Accepted })
	handler, err := admission.New(acceptor, admission.Options{
		Managers: []core.Manager{"other"}, // Serves decides in its place.
		Serves:   func(manager core.Manager) bool { return manager == "widgets" && served.Load() },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		served  bool
		manager string
		want    int
	}{
		{false, "widgets", http.StatusNotFound},
		{true, "widgets", http.StatusBadRequest}, // The body is no review.
		{true, "other", http.StatusNotFound},
		{false, "widgets", http.StatusNotFound},
	} {
		served.Store(test.served)
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/validate/"+test.manager, strings.NewReader("{}"))
		request.Header.Set("Content-Type", "application/json")
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, request)
		if response.Code != test.want {
			t.Errorf("%+v: status %d", test, response.Code)
		}
	}
}
