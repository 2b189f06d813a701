package listener_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener/statuspage"
)

// fromBrowser is a request as a browser sends it for a document.
func fromBrowser() *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/fleet", http.NoBody)
	r.Header.Set("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
	return r
}

func TestFleetIsClosedByDefault(t *testing.T) {
	t.Parallel()
	handler := statuspage.FleetHandler(newFleet(t, fleet.Options{}))
	for name, r := range map[string]*http.Request{
		"page": fromBrowser(), "JSON": httptest.NewRequest(http.MethodGet, "/?state=stale", http.NoBody),
	} {
		if w := serve(handler, r); w.Code != http.StatusForbidden || strings.Contains(w.Body.String(), "counts") {
			t.Errorf("%s without authentication: answer %d, want 403 without content: %s", name, w.Code, w.Body)
		}
	}
}

func TestRequireToken(t *testing.T) {
	t.Parallel()
	token := "secret"
	handler := statuspage.RequireToken(func() string { return token }, statuspage.FleetHandler(newFleet(t, fleet.Options{})))
	basic := func(password string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth("anyone", password) }
	}
	bearer := func(token string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	}
	tests := []struct {
		name, token string
		log         func(*http.Request)
		want        int
	}{
		{"no token", "secret", func(*http.Request) {}, 401},
		{"bearer", "secret", bearer("secret"), 200},
		{"wrong bearer", "secret", bearer("secre"), 401},
		{"password of a browser", "secret", basic("secret"), 200},
		{"wrong password", "secret", basic("Secret"), 401},
		{"empty token, empty bearer", "", bearer(""), 401},
		{"empty token, empty password", "", basic(""), 401},
		{"empty token, nothing", "", func(*http.Request) {}, 401},
		{"changed token", "new", bearer("secret"), 401},
	}
	for _, test := range tests {
		token = test.token
		r := fromBrowser()
		test.log(r)
		w := serve(handler, r)
		challenged := strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Basic ")
		if w.Code != test.want || challenged != (test.want == http.StatusUnauthorized) {
			t.Errorf("%s: answer %d, want %d; challenged: %t", test.name, w.Code, test.want, challenged)
		}
	}
}

// A page with inline code, other origins or HTML from text would run code from the names of a runtime.
func TestFleetPagePolicy(t *testing.T) {
	t.Parallel()
	w := serve(statuspage.Authenticated(statuspage.FleetHandler(newFleet(t, fleet.Options{}))), fromBrowser())
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("answer %d of type %q, want a page", w.Code, w.Header().Get("Content-Type"))
	}
	policy := w.Header().Get("Content-Security-Policy")
	for _, want := range []string{
		"default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "frame-ancestors 'none'",
		"require-trusted-types-for 'script'", "trusted-types 'none'",
	} {
		if !strings.Contains(policy, want) {
			t.Errorf("no %q in the policy %q", want, policy)
		}
	}
	if found := regexp.MustCompile(`unsafe|\*|https?:`).FindString(policy); found != "" {
		t.Errorf("%q in the policy %q", found, policy)
	}
	link := regexp.MustCompile(`<a href="https://github\.com/runtime-watcher/[^"]*" rel="noreferrer">`) // A click loads it.
	if found := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?://|\son\w+=|\sstyle=`).
		FindString(link.ReplaceAllString(w.Body.String(), "")); found != "" {
		t.Errorf("%q in the page, want neither HTML from text nor foreign assets nor inline code", found)
	}
	for name, want := range map[string]string{
		"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Vary": "Accept",
	} {
		if have := w.Header().Get(name); have != want {
			t.Errorf("%s is %q, want %q", name, have, want)
		}
	}
}

// Each state and each reason has words on the page.
func TestFleetPageHasWordsForEachCondition(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("statuspage/page.html")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range fleet.Conditions() {
		for _, key := range []string{string(c.State), c.Reason} {
			if key != "" && !strings.Contains(string(page), "\n  "+key+": '") {
				t.Errorf("no words for %q in the page", key)
			}
		}
	}
}

func TestFleetSelection(t *testing.T) {
	t.Parallel()
	watched := newFleet(t, fleet.Options{})
	for i, name := range []core.RuntimeID{"late", "lost", "expiring", "Fresh-1", "fresh-2"} {
		batch := heartbeat(name, 1)
		batch.Heartbeat.Canary = core.CanaryAlive
		peer := core.Peer{ID: name, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(100 * time.Hour)}
		switch i {
		case 0:
			batch.Heartbeat.OldestPending = time.Hour
		case 1:
			batch.Heartbeat.Canary = core.CanaryLost
			peer.NotAfter = time.Now().Add(2 * time.Hour)
		case 2:
			batch.Heartbeat.KeyMaterialError = "expired"
		}
		watched.Observe(peer, manager, batch, nil)
	}
	watched.Observe(core.Peer{ID: "old"}, manager, core.NewBatch(core.WatchEvent{}, core.WatchEvent{}), nil)
	handler := statuspage.Authenticated(statuspage.FleetHandler(watched))
	tests := []struct {
		query string
		want  string
		total int
	}{
		{"order=attention", "lost late expiring old Fresh-1 fresh-2", 0},
		{"order=attention&limit=2", "lost late", 6},
		{"order=attention&limit=2&offset=4", "Fresh-1 fresh-2", 6},
		{"limit=2&offset=9", "", 6},
		{"search=FRESH", "Fresh-1 fresh-2", 0},
		{"search=resh-&limit=1", "Fresh-1", 2},
		{"reason=canary_lost", "lost", 0},
		{"expires=4h", "lost", 0}, // whatever else is wrong with it
		{"reason=", "Fresh-1 fresh-2 old", 0},
	}
	for _, test := range tests {
		view := fleetJSON(t, handler, "?"+test.query)
		if have := strings.Join(view.names(), " "); have != test.want || view.Total != test.total {
			t.Errorf("%s: %q of %d, want %q of %d", test.query, have, view.Total, test.want, test.total)
		}
		if diff := cmp.Diff([]map[string]any{{"manager": "lifecycle", "count": 2.0}}, view.Events); diff != "" {
			t.Errorf("%s: events (-want +have):\n%s", test.query, diff)
		}
	}
	if view := fleetJSON(t, handler, "?brief=true&runtime=lost"); len(view.Runtimes[0].Replicas) != 0 {
		t.Errorf("brief: %+v, want no replicas", view.Runtimes[0])
	}
	for _, wrong := range []string{"limit=-1", "limit=many", "offset=1.5", "order=random", "expires=soon"} {
		if w := serve(handler, httptest.NewRequest(http.MethodGet, "/?"+wrong, http.NoBody)); w.Code != http.StatusBadRequest {
			t.Errorf("%s: answer %d, want 400", wrong, w.Code)
		}
	}
}

type fleetAnswer struct {
	Events   []map[string]any `json:"events"`
	Total    int              `json:"total"`
	Runtimes []struct {
		Runtime  string           `json:"runtime"`
		Replicas []map[string]any `json:"replicas"`
	} `json:"runtimes"`
}

func (a *fleetAnswer) names() (names []string) {
	for _, s := range a.Runtimes {
		names = append(names, s.Runtime)
	}
	return names
}

func fleetJSON(t *testing.T, handler http.Handler, query string) (answer fleetAnswer) {
	t.Helper()
	w := serve(handler, httptest.NewRequest(http.MethodGet, "/"+query, http.NoBody))
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatalf("%s: %v: %s", query, err, w.Body)
	}
	return answer
}

// BenchmarkFleetPage is one refresh of the page: the counts and 100 of 10,000 runtimes.
func BenchmarkFleetPage(b *testing.B) {
	watched := newFleet(b, fleet.Options{})
	for i := range 10_000 {
		name := core.RuntimeID(fmt.Sprintf("runtime-%d", i))
		watched.Observe(core.Peer{ID: name}, manager, heartbeat(name, 1), nil)
	}
	handler := statuspage.Authenticated(statuspage.FleetHandler(watched))
	b.ReportAllocs()
	for b.Loop() {
		w := serve(handler, httptest.NewRequest(http.MethodGet, "/?order=attention&brief=true&limit=100", http.NoBody))
		if w.Code != http.StatusOK {
			b.Fatal(w.Code)
		}
	}
}
