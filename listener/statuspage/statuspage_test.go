package statuspage_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/installations"
	"github.com/runtime-watcher/runtime-watcher/listener/statuspage"
)

func newFleet(t *testing.T) *fleet.Fleet {
	t.Helper()

	f, err := fleet.New(fleet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// beat observes the first heartbeat of a runtime, which is healthy before change.
func beat(f *fleet.Fleet, runtime core.RuntimeID, expires time.Duration, change func(*core.Heartbeat)) {
	beat := &core.Heartbeat{ID: "i", Number: 1, Interval: time.Minute, Sequence: 7, Canary: core.CanaryAlive}
	change(beat)
	peer := core.Peer{ID: runtime, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(expires)}
	f.Receiver().Observe(peer, "lifecycle", core.Batch{Source: runtime, Epoch: "e", Heartbeat: beat}, nil)
}

func healthy(*core.Heartbeat) {}

func open(f *fleet.Fleet) http.Handler { return statuspage.Authenticated(statuspage.FleetHandler(f)) }

func get(handler http.Handler, query string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/"+query, http.NoBody)
	for _, c := range change {
		c(r)
	}

	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

// asBrowser asks for a document.
func asBrowser(r *http.Request) { r.Header.Set("Accept", "text/html,application/xhtml+xml,*/*;q=0.8") }

func asPost(r *http.Request) { r.Method = http.MethodPost }

func parse(t *testing.T, w *httptest.ResponseRecorder, into any) {
	t.Helper()

	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("answer %d of type %q, want JSON: %s", w.Code, w.Header().Get("Content-Type"), w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
		t.Fatal(err)
	}
}

func installed() installations.All {
	return installations.All{
		Runtimes: map[installations.State]int{
			{State: "Ready"}: 3, {State: "Failed", Reason: "Unreachable"}: 2,
		},
		Failed: []installations.Failed{
			{Object: types.NamespacedName{Namespace: "kcp-system", Name: "kyma-d"}, Runtime: "runtime-d", Reason: "Unreachable"},
			{Object: types.NamespacedName{Namespace: "kcp-system", Name: "kyma-e"}, Reason: "Unreachable"},
		},
		NeverHeard: map[core.Manager][]core.RuntimeID{"kyma": {"runtime-a"}, "other": {"runtime-a", "runtime-b"}},
		Phase:      "Confirming", Waiting: []core.RuntimeID{"runtime-b"}, Overdue: []core.RuntimeID{"runtime-c"},
	}
}

func TestConstructorsRefuseNil(t *testing.T) {
	t.Parallel()
	for want, construct := range map[string]func(){
		"fleet": func() { statuspage.FleetHandler(nil) },
		"read":  func() { statuspage.InstallationsHandler(nil) },
		"token": func() { statuspage.RequireToken(nil, http.NotFoundHandler()) },
		"next":  func() { statuspage.RequireToken(func() string { return "" }, http.HandlerFunc(nil)) },
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()

			defer func() {
				if got, _ := recover().(string); !strings.Contains(got, want+" is nil") {
					t.Errorf("panic %q, want one about a nil %s", got, want)
				}
			}()

			construct()
		})
	}
}

// TestRefusals: without authentication both handlers are closed.
func TestRefusals(t *testing.T) {
	t.Parallel()

	runtimes := statuspage.FleetHandler(newFleet(t))
	installed := statuspage.InstallationsHandler(installed)
	none := statuspage.InstallationsHandler(func() installations.All { return installations.All{} })
	for _, test := range []struct {
		handler http.Handler
		query   string
		change  func(*http.Request)
		want    int
	}{
		{runtimes, "fleet", asBrowser, 403},
		{runtimes, "?state=stale", func(*http.Request) {}, 403},
		{installed, "", asBrowser, 403},
		{statuspage.Authenticated(none), "", asBrowser, 503}, // A replica without knowledge.
		{statuspage.Authenticated(runtimes), "", asPost, 405},
		{statuspage.Authenticated(installed), "", asPost, 405},
	} {
		w := get(test.handler, test.query, test.change)
		if w.Code != test.want || strings.Contains(w.Body.String(), "counts") {
			t.Errorf("%q: answer %d, want %d without content: %s", test.query, w.Code, test.want, w.Body)
		}
	}
}

// A misspelt selection must not look like an answer for all runtimes, or for none.
func TestWrongQueriesAreNamed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		handler http.Handler
		wrong   map[string]string // what the answer says of each query
	}{
		{statuspage.FleetHandler(newFleet(t)), map[string]string{
			"stat=stale": `parameter "stat" is unknown, want one of ` +
				`["brief" "expires" "limit" "manager" "offset" "order" "reason" "runtime" "search" "state" "version"]`,
			"state=stael":             `state is "stael", want one of ["fresh" "unproved" "unknown" "stale" "degraded"]`,
			"reason=canary_lst":       `"canary_lost"`,
			"order=random":            `order is "random", want one of ["attention"]`,
			"state=fresh&state=stale": `parameter "state" occurs 2 times, want it once`,
			"state=stale&limit=%zz":   `invalid URL escape "%zz"`,
			"limit=-1":                `limit is "-1", want a number from 0`,
			"offset=1.5":              `offset is "1.5", want a number from 0`,
			"expires=soon":            `expires is "soon", want a time such as 4h`,
		}},
		{statuspage.InstallationsHandler(installed), map[string]string{
			"state=Failed":    `parameter "state" is unknown, want one of ["limit" "manager" "offset" "problem" "reason" "runtime" "search"]`,
			"problem=waiting": `problem is "waiting", want one of ["failed" "never_heard" "ca_waiting" "certificate_overdue"]`,
		}},
	} {
		for query, want := range test.wrong {
			for _, change := range []func(*http.Request){asBrowser, func(*http.Request) {}} {
				w := get(statuspage.Authenticated(test.handler), "?"+query, change)
				if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
					t.Errorf("%s: answer %d, want 400 with %s:\n%.300s", query, w.Code, want, w.Body)
				}
			}
		}
	}
}

// Only the present token opens the page, as a bearer token or as the password of a browser. An
// empty token opens nothing.
func TestRequireToken(t *testing.T) {
	t.Parallel()

	token := "secret"
	handler := statuspage.RequireToken(func() string { return token }, statuspage.FleetHandler(newFleet(t)))
	basic := func(password string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth("anyone", password) }
	}
	bearer := func(token string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	}

	for _, test := range []struct {
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
	} {
		token = test.token
		w := get(handler, "fleet", asBrowser, test.log)
		challenged := strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Basic ")
		if w.Code != test.want || challenged != (test.want == http.StatusUnauthorized) {
			t.Errorf("%s: answer %d, want %d; challenged: %t", test.name, w.Code, test.want, challenged)
		}
	}
}

// Inline code, other origins or HTML from text would run code from the names of a runtime.
func TestPagePolicy(t *testing.T) {
	t.Parallel()

	w := get(open(newFleet(t)), "fleet", asBrowser)
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
		"Content-Type": "text/html; charset=utf-8",
	} {
		if have := w.Header().Get(name); have != want {
			t.Errorf("%s is %q, want %q", name, have, want)
		}
	}
}

// Each state and each reason has words on the page.
func TestPageHasWordsForEachCondition(t *testing.T) {
	t.Parallel()

	page := get(open(newFleet(t)), "fleet", asBrowser).Body.String()
	for _, c := range fleet.Conditions() {
		for _, key := range []string{string(c.State), string(c.Reason)} {
			if key != "" && !strings.Contains(page, "\n  "+key+": '") {
				t.Errorf("no words for %q in the page", key)
			}
		}
	}
}

// The action of each state and reason on the page is that of the table of states.
func TestPageLinksTheActionOfEachReason(t *testing.T) {
	t.Parallel()

	page := get(open(newFleet(t)), "fleet", asBrowser).Body.String()
	text, err := os.ReadFile("../../docs/reference/fleet-api.md")
	if err != nil {
		t.Fatal(err)
	}

	rows := regexp.MustCompile("(?m)^\\| (\\w+) \\| (?:`(\\w+)`)? ?\\|.*\\| ([^|]*) \\|$").FindAllStringSubmatch(string(text), -1)
	link := regexp.MustCompile(`\[.*\]\((.*)\)`)
	linked := 0
	for _, row := range rows {
		found := link.FindStringSubmatch(row[3])
		if found == nil {
			continue
		}
		target := path.Join("reference", found[1])
		linked++

		if want := fmt.Sprintf("\n  %s: '%s',", firstOf(row[2], row[1]), target); !strings.Contains(page, want) {
			t.Errorf("%s %s: no line %q in the page", row[1], row[2], want)
		}
	}

	if linked < 10 {
		t.Errorf("%d rows of the table have a link, want more", linked)
	}
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// Each parameter selects alone and together with others. An unknown parameter is refused, because
// it would select too much.
func TestFleetSelection(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	beat(f, "late", 100*time.Hour, func(b *core.Heartbeat) { b.OldestPending = time.Hour })
	beat(f, "lost", 2*time.Hour, func(b *core.Heartbeat) { b.Canary = core.CanaryLost })
	beat(f, "expiring", 100*time.Hour, func(b *core.Heartbeat) { b.KeyMaterialError = "expired" })
	beat(f, "Fresh-1", 100*time.Hour, healthy)
	beat(f, "fresh-2", 100*time.Hour, func(b *core.Heartbeat) { b.Version = "v1.2.3" })
	f.Receiver().Observe(core.Peer{ID: "old"}, "lifecycle", core.NewBatch(core.WatchEvent{}, core.WatchEvent{}), nil)
	f.Receiver().Observe(core.Peer{ID: "Fresh-1"}, "other", core.NewBatch(core.WatchEvent{}), nil)
	handler := open(f)

	for query, want := range map[string]string{
		"":                                  "Fresh-1 Fresh-1/other expiring fresh-2 late lost old",
		"order=attention":                   "lost late expiring Fresh-1/other old Fresh-1 fresh-2",
		"order=attention&limit=2":           "lost late of 7",
		"order=attention&limit=2&offset=5":  "Fresh-1 fresh-2 of 7",
		"limit=2&offset=9":                  " of 7",
		"search=FRESH":                      "Fresh-1 Fresh-1/other fresh-2",
		"search=resh-&limit=1":              "Fresh-1 of 3",
		"reason=canary_lost":                "lost",
		"version=v1.2.3":                    "fresh-2",
		"version=v1.2.4":                    "",
		"expires=4h":                        "lost", // whatever else is wrong with it
		"reason=":                           "Fresh-1 Fresh-1/other fresh-2 old",
		"state=fresh":                       "Fresh-1 fresh-2",
		"state=stale":                       "",
		"manager=other":                     "Fresh-1/other",
		"runtime=Fresh-1":                   "Fresh-1 Fresh-1/other",
		"runtime=Fresh-1&state=unknown":     "Fresh-1/other",
		"brief=true&runtime=lost&limit=100": "lost of 1",
	} {
		var view struct {
			Counts, Events []map[string]any
			Versions       []map[string]any
			Total          int
			Runtimes       []struct {
				Runtime, Manager string
				Replicas         []map[string]any
			}
		}

		parse(t, get(handler, "?"+query), &view)
		names := []string{}
		for _, s := range view.Runtimes {
			names = append(names, strings.TrimSuffix(s.Runtime+"/"+s.Manager, "/lifecycle"))
			if s.Runtime == "lost" && (len(s.Replicas) == 0) != strings.HasPrefix(query, "brief") {
				t.Errorf("%s: %d replicas", query, len(s.Replicas))
			}
		}

		have := strings.Join(names, " ")
		if view.Total > 0 {
			have += fmt.Sprint(" of ", view.Total)
		}
		if have != want {
			t.Errorf("%s: %q, want %q", query, have, want)
		}

		events := []map[string]any{{"manager": "lifecycle", "count": 2.0}, {"manager": "other", "count": 1.0}}
		counts := []map[string]any{
			{"manager": "lifecycle", "state": "degraded", "reason": "canary_lost", "count": 1.0},
			{"manager": "lifecycle", "state": "degraded", "reason": "key_material", "count": 1.0},
			{"manager": "lifecycle", "state": "degraded", "reason": "pending_too_long", "count": 1.0},
			{"manager": "lifecycle", "state": "fresh", "count": 2.0},
			{"manager": "lifecycle", "state": "unknown", "count": 1.0},
			{"manager": "other", "state": "unknown", "count": 1.0},
		}

		versions := []map[string]any{{"manager": "lifecycle", "version": "v1.2.3", "count": 1.0}}
		if diff := cmp.Diff(events, view.Events) + cmp.Diff(counts, view.Counts) + cmp.Diff(versions, view.Versions); diff != "" {
			t.Errorf("%s: events, counts and versions (-want +have):\n%s", query, diff)
		}
	}

	if have, want := get(open(newFleet(t)), "").Body.String(), `{"counts":[],"runtimes":[]}`+"\n"; have != want {
		t.Errorf("without runtimes: %q, want %q", have, want)
	}
}

// Durations are readable, and no text of a runtime breaks the JSON.
func TestFleetShowsHeartbeats(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	beat(f, "runtime-a", time.Hour, func(b *core.Heartbeat) {
		b.Time = time.Now().Add(-time.Hour)
		b.Interval = 30 * time.Second
		b.OldestPending = 90 * time.Second
		b.KeyMaterialError = "\"},\xff<script>"
	})

	f.Receiver().Refuse("runtime-a", "lifecycle", reasons.SANMismatch)
	var view struct {
		Runtimes []struct {
			Reason, Refused string
			Replicas        []struct {
				Sequence  uint64
				ClockSkew string
				Heartbeat map[string]any
			}
		}
	}

	w := get(open(f), "")
	parse(t, w, &view)
	shown := view.Runtimes[0]
	beat := shown.Replicas[0].Heartbeat
	if shown.Replicas[0].ClockSkew != "-1h0m0s" || shown.Reason != string(fleet.ReasonPendingTooLong) || shown.Refused != reasons.SANMismatch || shown.Replicas[0].Sequence != 7 ||
		beat["interval"] != "30s" || beat["oldestPending"] != "1m30s" || beat["keyMaterialError"] != "\"},\ufffd<script>" {
		t.Errorf("shown: %s", w.Body)
	}
}

// Each parameter selects alone and together with others, and total does not depend on the part.
func TestInstallationsSelection(t *testing.T) {
	t.Parallel()

	handler := statuspage.Authenticated(statuspage.InstallationsHandler(installed))
	const a, b = "runtime-a never_heard kyma  ", "runtime-a never_heard other  "
	const c, d = "runtime-c certificate_overdue   ", "runtime-d failed  Unreachable kcp-system/kyma-d"
	for query, want := range map[string][]string{
		"": {
			"7", " failed  Unreachable kcp-system/kyma-e", a, b, "runtime-b ca_waiting   ",
			"runtime-b never_heard other  ", c, d,
		},
		"?problem=ca_waiting":                      {"1", "runtime-b ca_waiting   "},
		"?problem=never_heard&manager=kyma":        {"1", a},
		"?problem=failed&limit=1&offset=1":         {"2", d},
		"?problem=failed&reason=InstallerRefused":  {"0"},
		"?search=ME-C":                             {"1", c},
		"?runtime=runtime-d":                       {"1", d},
		"?problem=certificate_overdue&offset=1000": {"1"},
	} {
		var view struct {
			Total    int
			Problems []struct{ Runtime, Problem, Manager, Reason, Object string }
		}
		parse(t, get(handler, query), &view)
		have := []string{strconv.Itoa(view.Total)}
		for _, p := range view.Problems {
			have = append(have, strings.Join([]string{p.Runtime, p.Problem, p.Manager, p.Reason, p.Object}, " "))
		}

		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("%s: total and problems (-want +have):\n%s", query, diff)
		}
	}
}

// Without a limit, the answer has the first 100 problems, and the number of all.
func TestInstallationsAreAHundredAtOnce(t *testing.T) {
	t.Parallel()

	handler := statuspage.Authenticated(statuspage.InstallationsHandler(func() (all installations.All) {
		all.Phase = "Confirming"
		all.Waiting = make([]core.RuntimeID, 10_000)
		return all
	}))

	var view struct {
		Total    int
		Problems []struct{}
	}
	parse(t, get(handler, ""), &view)

	if view.Total != 10_000 || len(view.Problems) != 100 {
		t.Errorf("%d of %d problems", len(view.Problems), view.Total)
	}
}

// The document shows the answer for these installations.
func TestInstallationsAreDocumented(t *testing.T) {
	t.Parallel()

	text, err := os.ReadFile("../../docs/reference/fleet-api.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?s)<!-- names: installations -->\n```json\n(.*?)```").FindSubmatch(text)
	if shown == nil {
		t.Fatal("docs/reference/fleet-api.md shows no answer")
	}

	handler := statuspage.Authenticated(statuspage.InstallationsHandler(installed))
	var want, have any
	answer := get(handler, "?limit=4&offset=2").Body.Bytes()
	err = errors.Join(json.Unmarshal(shown[1], &want), json.Unmarshal(answer, &have))
	if diff := cmp.Diff(want, have); diff != "" || err != nil {
		t.Errorf("answer (-document +handler):\n%s%v", diff, err)
	}
}
