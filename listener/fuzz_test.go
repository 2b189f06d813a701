package listener_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/listener"
)

// FuzzServeHTTP looks for a path that reaches the handler of another manager. It also looks for a
// body that is taken although it names no object, and for answers that are not in the table.
func FuzzServeHTTP(f *testing.F) {
	for _, path := range []string{
		"/v1/lifecycle/event", "/v2/lifecycle/event", "/v3/lifecycle/events", "/v2/other/event", "/v2/%2e%2e/event", "/v2/a%2Fb/event",
		"//v2/lifecycle/event", "/v2/lifecycle/../lifecycle/event", "/v2/lifecycle/event/", "*", "/v2/lifecycle%00/event", "/v2/é/event",
	} {
		f.Add(path, bodyV1)
	}
	for _, body := range []string{"", "{", "null", "[]", "{}", bodyV2, bodyV2 + bodyV2, strings.Repeat("[", 5000), strings.Repeat(" ", 17<<10)} {
		f.Add("/v2/lifecycle/event", body)
	}
	allowed := map[int]bool{200: true, 202: true, 400: true, 404: true, 413: true, 415: true}
	f.Fuzz(func(t *testing.T, path, body string) {
		target, err := url.ParseRequestURI(path)
		if err != nil {
			return
		}
		var record recorder
		l := newListener(t, listener.PeersFunc(known), listener.InsecureAllowAll(), &record, listener.Options{Hooks: record.hooks()})
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.URL, r.RequestURI = target, path
		r.Header.Set("Content-Type", "application/json")
		w := serve(l, r)
		if !allowed[w.Code] {
			t.Fatalf("answer %d %s", w.Code, w.Body)
		}
		deliveries, answers := record.taken()
		if len(answers) != 1 || answers[0].Status != w.Code || (answers[0].Reason == "") != (w.Code < 300) {
			t.Errorf("answer %d was counted as %+v", w.Code, answers)
		}
		if (len(deliveries) > 0) != (w.Code < 300) {
			t.Errorf("%d deliveries with answer %d", len(deliveries), w.Code)
		}
		for _, d := range deliveries {
			if !d.Event.Resync && (d.Event.Watched.Name == "" || !strings.Contains(target.Path, "/lifecycle/")) {
				t.Errorf("delivery %+v of path %q", d, target.Path)
			}
		}
	})
}
