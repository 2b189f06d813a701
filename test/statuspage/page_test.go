// Package statuspage tests the page of statuspage.FleetHandler in headless Chromium.
package statuspage

import (
	"bytes"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener/statuspage"
	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
)

var update = flag.Bool("update", false, "write the screenshots of the documents")

const token = "token-of-the-test"

// world is a fleet with its page in a browser.
type world struct {
	t     *testing.T
	fleet *fleet.Fleet
	url   string
	tab   *tab
	beats uint64
}

func newWorld(t *testing.T) *world {
	t.Helper()
	watched := lab.Must(fleet.New(fleet.Options{}))
	handler := statuspage.RequireToken(func() string { return token }, statuspage.FleetHandler(watched))
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return &world{t: t, fleet: watched, url: server.URL + "/fleet"}
}

// beat sends a heartbeat of a runtime that the canary proves, after alter.
func (w *world) beat(runtime string, alter func(*core.Heartbeat)) {
	w.beats++
	now := time.Now()
	beat := &core.Heartbeat{
		ID: "i", Time: now, Number: w.beats, Interval: 10 * time.Minute, Instance: "agent-0", Version: "v1.2.3",
		Canary: core.CanaryAlive, LastReview: now.Add(-time.Minute), CertificateFingerprint: strings.Repeat("0c11dec2", 8),
		CAFingerprints: []string{strings.Repeat("a4da683e", 8)}, ConfigHash: "cd79ce5a268e5cdd",
	}
	alter(beat)
	peer := core.Peer{ID: core.RuntimeID(runtime), NotBefore: now, NotAfter: now.Add(60 * 24 * time.Hour)}
	w.fleet.Receiver().Observe(peer, "lifecycle-manager", core.Batch{Epoch: "4e3dbb281e4d424e", Heartbeat: beat}, nil)
}

func healthy(*core.Heartbeat) {}

// fill observes n runtimes. A few need attention.
func (w *world) fill(n int) {
	troubles := []func(*core.Heartbeat){
		func(b *core.Heartbeat) { b.Canary = core.CanaryLost },
		func(b *core.Heartbeat) { b.Pending, b.OldestPending = 1234, 5*time.Minute },
		func(b *core.Heartbeat) { b.KeyMaterialError = "the certificate does not fit the key" },
		func(b *core.Heartbeat) { b.Canary, b.LastReview = core.CanaryOff, time.Time{} },
	}
	for i := range n {
		alter := healthy
		if i%400 == 7 {
			alter = troubles[i/400%len(troubles)]
		}
		w.beat(fmt.Sprintf("%08x-skr-%04d", uint32(i)*2654435761, i), alter)
	}
}

// send observes events of a runtime, until the test ends, as fast as the page asks for them.
func (w *world) send(runtime string, n int) {
	events := core.NewBatch(make([]core.WatchEvent, n)...)
	w.fleet.Receiver().Observe(core.Peer{ID: core.RuntimeID(runtime)}, "lifecycle-manager", events, nil)
}

func (w *world) open() {
	w.t.Helper()
	w.tab = openTab(w.t, w.url, token)
	w.tab.await("Live", `document.getElementById('live').textContent === 'Live'`)
}

func TestPage(t *testing.T) {
	w := newWorld(t)
	w.fill(5000)
	w.open()
	t.Run("counts and order", w.testCounts)
	t.Run("search", w.testSearch)
	t.Run("keyboard", w.testKeyboard)
	t.Run("pages", w.testPages)
	t.Run("live", w.testLive)
	t.Run("narrow", w.testNarrow)
	t.Run("light and dark", w.testColours)
	w.tab.wantNoProblems()
}

func (w *world) testCounts(t *testing.T) {
	tab := w.tab.of(t)
	tab.want(`document.querySelector('#counts').innerText.replace(/\s+/g, ' ')`,
		"5,000 all 10 degraded 0 stale 0 unknown 3 unproved 4,987 fresh")
	tab.want(`document.querySelector('#versions').innerText.replace(/\s+/g, ' ')`, "5,000 with agent v1.2.3")
	tab.want(`document.querySelector('#rows tr').innerText.replace(/\s+/g, ' ').replace(/^\S+/, 'NAME').replace(/\d+ (s|min)/g, 'N s')`,
		"NAME degraded The API server does not call the agent: changes are missed. N s N s ago")
	tab.want(`[...document.querySelectorAll('#rows .state')].slice(0, 15).map(s => s.innerText).join(' ')`,
		strings.TrimSpace(strings.Repeat("degraded ", 10)+strings.Repeat("unproved ", 3)+strings.Repeat("fresh ", 2)))
	tab.want(`document.querySelectorAll('#rows tr').length`, 100.0)
	tab.eval(`document.querySelector('#reasons button').click()`)
	tab.await("the runtimes with one reason", `document.getElementById('range').textContent === '1–4 of 4'`)
	tab.eval(`document.querySelector('#counts button').click()`)
	tab.await("all runtimes", `document.getElementById('range').textContent === '1–100 of 5,000'`)
}

func (w *world) testSearch(t *testing.T) {
	tab := w.tab.of(t)
	tab.eval(`document.getElementById('search').focus()`)
	tab.press("SKR-0407")
	tab.await("one runtime", `document.getElementById('range').textContent === '1–1 of 1'`)
	tab.want(`document.querySelector('#rows td').innerText.endsWith('-skr-0407')`, true)
	tab.press("none such")
	tab.await("a text for no runtime", `!document.getElementById('empty').hidden`)
	tab.eval(`const s = document.getElementById('search'); s.value = ''; s.dispatchEvent(new Event('input')); s.blur()`)
	tab.await("all runtimes", `document.getElementById('range').textContent === '1–100 of 5,000'`)
}

// All can be done without a mouse.
func (w *world) testKeyboard(t *testing.T) {
	tab := w.tab.of(t)
	tab.pressKey("/")
	tab.want(`document.activeElement.id`, "search")
	tab.press("skr-0407")
	tab.await("one runtime", `document.getElementById('range').textContent === '1–1 of 1'`)
	tab.press(kb.ArrowDown)
	tab.press(kb.Enter)
	tab.await("the detail", `document.getElementById('facts').innerText.includes('Queue')`)
	for _, want := range []string{
		"1,234 events, the oldest for 5m0s", "An event waits for too long in the agent.", "Replica agent-0",
		"Last review", "alive", "0c11dec2", "a4da683e", "v1.2.3", "in 60 d",
	} {
		tab.want(fmt.Sprintf(`document.getElementById('facts').innerText.includes(%q) || document.getElementById('facts').innerText`, want), true)
	}
	tab.press(kb.Escape)
	tab.await("the list", `document.getElementById('detail').hidden`)
	tab.want(`document.activeElement.innerText.endsWith('-skr-0407')`, true)
	tab.eval(`const s = document.getElementById('search'); s.value = ''; s.dispatchEvent(new Event('input'))`)
	tab.await("all runtimes", `document.getElementById('range').textContent === '1–100 of 5,000'`)
}

func (w *world) testPages(t *testing.T) {
	tab := w.tab.of(t)
	tab.pressKey("]")
	tab.await("the second page", `document.getElementById('range').textContent === '101–200 of 5,000'`)
	tab.pressKey("[")
	tab.await("the first page", `document.getElementById('range').textContent === '1–100 of 5,000'`)
}

// The page shows a change without a reload, and keeps the focus.
func (w *world) testLive(t *testing.T) {
	tab := w.tab.of(t)
	tab.eval(`document.activeElement.blur()`)
	tab.press(kb.ArrowDown)
	tab.want(`document.activeElement === document.querySelector('#rows button')`, true)
	w.beat("00-breaks-now", func(b *core.Heartbeat) { b.Canary = core.CanaryLost })
	tab.await("the new runtime first", `document.querySelector('#rows td').innerText === '00-breaks-now'`)
	tab.want(`document.activeElement === document.querySelector('#rows button')`, true)
	points := 2
	if *update {
		points = 8 // The picture has a curve.
	}
	for i := range points {
		before := evaluate[float64](tab, `rates.length`)
		w.send("00-breaks-now", 400+150*(i%3))
		tab.await("the next point of the chart", fmt.Sprintf(`rates.length > %v`, before))
	}
	tab.want(`Math.max(...rates) > 10 && document.getElementById('rate').textContent !== '–'`, true)
	w.fleet.Forget("00-breaks-now")
	tab.await("the runtime gone", `document.querySelector('#rows td').innerText !== '00-breaks-now'`)
}

// On a phone, each row has the width of the page. No text needs a second scroll bar.
func (w *world) testNarrow(t *testing.T) {
	tab := w.tab.of(t)
	const wide, narrow = 1280, 400
	tab.width(narrow)
	tab.want(`document.documentElement.scrollWidth`, float64(narrow))
	for _, cell := range []string{"td", ".state", ".why"} {
		tab.want(fmt.Sprintf(`document.querySelector('#rows %s').getBoundingClientRect().width > 300`, cell), true)
	}
	w.shoot(t, "status-page-narrow.png")
	tab.width(wide)
	tab.want(`document.documentElement.scrollWidth`, float64(wide))
}

func (w *world) testColours(t *testing.T) {
	tab := w.tab.of(t)
	background := `getComputedStyle(document.body).backgroundColor`
	tab.eval(`location.hash = encodeURIComponent([...document.querySelectorAll('#rows tr')].find(r => r.innerText.includes('waits')).runtime)`)
	tab.await("the detail", `document.getElementById('facts').innerText.includes('Queue')`)
	tab.want(`[...document.querySelectorAll('#table td, #table th')].filter(c => c.offsetWidth > 0 && c.scrollWidth > c.clientWidth).map(c => c.innerText).join()`, "")
	tab.colours("dark")
	tab.want(background, "rgb(18, 22, 28)")
	tab.colours("light")
	tab.want(background, "rgb(244, 246, 249)")
	w.shoot(t, "status-page.png")
}

// shoot writes a picture of the page for the documents, with -update.
func (w *world) shoot(t *testing.T, name string) {
	t.Helper()
	if !*update {
		return
	}
	var smaller bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	picture := lab.Must(chromedp.Run(w.tab.ctx, chromedp.CaptureScreenshot()))
	lab.NoError(t, encoder.Encode(&smaller, lab.Must(png.Decode(bytes.NewReader(picture)))))
	if smaller.Len() > 200_000 {
		t.Errorf("the picture has %d bytes, want at most 200,000", smaller.Len())
	}
	if err := os.WriteFile(filepath.Join(test.Root(), "docs", name), smaller.Bytes(), 0o644); err != nil {
		t.Error(err)
	}
}

// A refused runtime shows why. What explains a state comes before fingerprints of 64 digits.
func TestRefused(t *testing.T) {
	w := newWorld(t)
	w.beat("runtime-2", healthy)
	w.beat("runtime-1", healthy)
	w.beat("runtime-1", func(b *core.Heartbeat) { b.Leaving = true })
	w.fleet.Receiver().Refuse("runtime-1", "lifecycle-manager", "san_mismatch")
	w.open()
	const why = "The control plane refuses the certificate of the runtime. Refused: san_mismatch."
	w.tab.want(`['.state', '.why'].map(c => document.querySelector('#rows ' + c).innerText).join(': ')`, "stale: "+why)
	w.tab.eval(`location.hash = 'runtime-1'`)
	w.tab.await("the detail of the refused one", fmt.Sprintf(`document.getElementById('facts').innerText.includes(%q)`, why))
	w.tab.eval(`location.hash = 'runtime-2'`)
	w.tab.await("the detail of the other one", `document.getElementById('facts').innerText.includes('Trusted CAs')`)
	w.tab.want(`[...document.querySelectorAll('#facts dt')].map(d => d.innerText)
		.filter(n => ['State', 'Meaning', 'Key material', 'Configuration fault', 'Certificate', 'Trusted CAs'].includes(n)).join()`,
		"State,Meaning,Key material,Configuration fault,Certificate,Trusted CAs")
	w.tab.want(`document.querySelector('footer a').href.split('/blob/main/')[1]`, "docs/reference/fleet-api.md#states")
	states := string(test.Read(t, "docs/reference/fleet-api.md"))
	if strings.Count(states, "[runbook](../operations/runbooks.md#") < 5 {
		t.Error("the table of states that the page links to has no runbooks")
	}
	w.tab.wantNoProblems()
}

// Names and messages of runtimes are foreign: each is shown as text, and none runs.
func TestHostileNames(t *testing.T) {
	w := newWorld(t)
	attacks := []string{
		`<img src=x onerror="window.attacked=1">`, `"><script>window.attacked=1</script>`, `</script><script>window.attacked=1</script>`,
		`javascript:window.attacked=1`, `'+(window.attacked=1)+'`, `{{constructor.constructor('window.attacked=1')()}}`,
		`%3Cimg src=x onerror=window.attacked=1%3E`, "a\u202eb\u0000\n<svg onload=window.attacked=1>", `__proto__`, `constructor`,
	}
	for _, attack := range attacks {
		w.beat(attack, func(b *core.Heartbeat) {
			b.KeyMaterialError = attack
			b.Version = attack
			b.Instance = attack
			b.ConfigHash = attack
			b.Canary, b.CAFingerprints, b.Dropped = core.CanaryState(attack), []string{attack}, map[core.Reason]int64{core.Reason(attack): 1}
		})
	}
	w.open()
	w.tab.want(`document.querySelectorAll('#rows tr').length`, float64(len(attacks)))
	for _, attack := range attacks {
		w.tab.eval(fmt.Sprintf(`location.hash = encodeURIComponent(%q)`, attack))
		w.tab.await("the detail", fmt.Sprintf(`view.runtime === %q && document.getElementById('facts').textContent.includes(view.runtime)`, attack))
	}
	w.tab.want(`document.querySelectorAll('img, script, svg').length`, 2.0) // The script and the chart of the page.
	w.tab.want(`typeof window.attacked`, "undefined")
	w.tab.wantNoProblems()
}

// The browser enforces the policy, also against a mistake in the page.
func TestPolicyIsEnforced(t *testing.T) {
	w := newWorld(t)
	w.open()
	for _, attack := range []string{
		`document.body.innerHTML = '<b>x</b>'`,
		`const s = document.createElement('script'); s.text = 'window.attacked = 1'; document.body.append(s)`,
		`setTimeout('window.attacked = 1')`,
		`document.body.setAttribute('onclick', 'window.attacked = 1'); document.body.click(); throw new Error('no listener')`,
	} {
		w.tab.want(fmt.Sprintf(`(() => { try { %s; return 'it ran' } catch { return 'refused' } })()`, attack), "refused")
	}
	w.tab.eval(`const i = new Image(); i.src = 'http://127.0.0.1:1/leak'; document.body.append(i)`)
	w.tab.want(`typeof window.attacked`, "undefined")
	w.tab.awaitProblem("Content Security Policy")
}

// A page without data reports that, as does one without an operator.
func TestEmptyAndBroken(t *testing.T) {
	w := newWorld(t)
	w.open()
	w.tab.want(`document.getElementById('empty').textContent.includes('Only the replica of the operator that leads')`, true)
	w.tab.eval(`fetch = () => Promise.reject(new Error('gone')); refresh()`)
	const says = `document.getElementById('live').textContent === %q`
	w.tab.await("the loss", fmt.Sprintf(says, "Not live: no answer came (gone). What is shown is old."))
	w.tab.eval(`fetch = () => Promise.resolve(new Response('', {status: 401})); refresh()`)
	w.tab.await("the end of the login", fmt.Sprintf(says, "Not live: the login is refused with 401, load the page again. What is shown is old."))
}

// A link may have the user and the password in it. The browser refuses to fetch such an address.
func TestPasswordInTheAddress(t *testing.T) {
	w := newWorld(t)
	w.beat("runtime-1", healthy)
	w.tab = openTab(t, strings.Replace(w.url, "://", "://anyone:"+token+"@", 1), "")
	w.tab.await("Live", `document.getElementById('live').textContent === 'Live'`)
	w.tab.want(`document.querySelector('#rows td').innerText`, "runtime-1")
	w.tab.wantNoProblems()
}

// A rollout that stops shows in the versions. One click selects the runtimes that are left behind.
func TestVersions(t *testing.T) {
	w := newWorld(t)
	for i := range 3 {
		w.beat(fmt.Sprint("runtime-", i), healthy)
	}
	w.beat("runtime-behind", func(b *core.Heartbeat) { b.Version = "v1.1.0" })
	w.open()
	w.tab.want(`document.querySelector('#versions').innerText.replace(/\s+/g, ' ')`, "1 with agent v1.1.0 3 with agent v1.2.3")
	w.tab.eval(`document.querySelector('#versions button').click()`)
	w.tab.await("one runtime", `document.getElementById('range').textContent === '1–1 of 1'`)
	w.tab.want(`document.querySelector('#rows td').innerText`, "runtime-behind")
	w.tab.want(`document.querySelector('#versions button').getAttribute('aria-pressed')`, "true")
	w.tab.eval(`document.querySelector('#versions button').click()`)
	w.tab.await("all runtimes", `document.getElementById('range').textContent === '1–4 of 4'`)
	for _, width := range []int64{400, 1280} {
		w.tab.width(width)
		w.tab.want(`[...document.querySelectorAll('#versions button')].filter(b => {
			const box = b.getBoundingClientRect();
			return box.width > 0 && box.left >= 0 && box.right <= innerWidth
		}).length`, 2.0)
	}
	w.tab.wantNoProblems()
}

// The row that explains the state stands first among those of a replica, with the runbook above.
func TestDetailExplainsTheState(t *testing.T) {
	w := newWorld(t)
	troubles := map[string]struct {
		alter           func(*core.Heartbeat)
		row, text, link string
	}{
		"canary": {func(b *core.Heartbeat) { b.Canary = core.CanaryLost }, "Canary", "lost", "runtimewatcheragentcanarylost"},
		"key":    {func(b *core.Heartbeat) { b.KeyMaterialError = "no fit" }, "Key material", "no fit", "runtimewatcheragentkeymaterial"},
		"queue":  {func(b *core.Heartbeat) { b.Pending, b.OldestPending = 7, time.Hour }, "Queue", "7 events", "runtimewatchereventswait"},
		"refused canary": {func(b *core.Heartbeat) {
			b.Canary = core.CanaryFailing
			b.CanaryError = "canary: PATCH /apis: 403 Forbidden"
		}, "Canary", "failing: canary: PATCH /apis: 403 Forbidden", "runtimewatcheragentcanaryfails"},
		"hidden API server": {func(b *core.Heartbeat) {
			b.Canary = core.CanaryLost
			b.CanaryError = "the API server 10.0.0.2:6443 does not call the agent"
		}, "Canary", "lost: the API server 10.0.0.2:6443 does not", "runtimewatcheragentcanarylost"},
		"webhook": {func(b *core.Heartbeat) {
			b.WebhookError = "kyma.watcher: namespaceSelector"
		}, "Webhooks", "kyma.watcher: namespaceSelector", "a-webhook-was-changed"},
	}
	for name, trouble := range troubles {
		w.beat(name, trouble.alter)
	}
	w.beat("sound", func(b *core.Heartbeat) {
		b.Time = b.Time.Add(-2 * time.Hour)
		b.Interruption = core.Interruption{
			Reason: "proxy_unreachable", Error: "proxy 10.0.0.1:3128: connection refused", Since: b.Time.Add(-3 * time.Minute), Until: b.Time,
		}
	})
	w.open()
	for name, trouble := range troubles {
		w.tab.eval(fmt.Sprintf(`location.hash = %q`, name))
		w.tab.await("the detail", fmt.Sprintf(`view.runtime === %q && document.querySelectorAll('#facts dl').length === 2`, name))
		w.tab.want(`document.querySelectorAll('#facts dl')[1].querySelector('dt').innerText`, trouble.row)
		w.tab.want(`document.querySelectorAll('#facts dt.cause').length`, 1.0)
		w.tab.want(fmt.Sprintf(`document.querySelector('#facts dd.cause').innerText.startsWith(%q)`, trouble.text), true)
		w.tab.want(`document.querySelector('#facts a').href.split('#')[1]`, trouble.link)
		w.wantMarked()
	}
	w.tab.eval(`location.hash = 'sound'`)
	w.tab.await("the detail", `view.runtime === 'sound' && document.getElementById('facts').innerText.includes('2h0m0s behind that of the operator')`)
	w.tab.want(`document.querySelectorAll('#facts .cause, #facts a').length`, 0.0)
	w.tab.want(`/proxy_unreachable for 3 min, until .*2 h ago: proxy 10.0.0.1:3128: connection refused/.test(document.getElementById('facts').innerText)`, true)
	w.tab.wantNoProblems()
}

// wantMarked requires at both widths that the row which explains the state is bold and red, and that no text of the
// detail is cut off or makes the page scroll aside.
func (w *world) wantMarked() {
	w.t.Helper()
	for _, width := range []int64{400, 1280} {
		w.tab.width(width)
		w.tab.want(`document.documentElement.scrollWidth`, float64(width))
		w.tab.want(`getComputedStyle(document.querySelector('#facts dt.cause')).fontWeight`, "600")
		w.tab.want(`getComputedStyle(document.querySelector('#facts dd.cause')).color`, "rgb(179, 18, 61)")
		w.tab.want(`[...document.querySelectorAll('#facts dt, #facts dd, #table td, footer')]
			.filter(c => c.offsetWidth > 0 && c.scrollWidth > c.clientWidth).map(c => c.innerText).join()`, "")
	}
}

// A replica that leads since a minute may not have heard all runtimes yet. The page has that time, also without runtimes.
func TestLeadsSince(t *testing.T) {
	w := newWorld(t)
	handlers := map[core.Manager]core.Handler{
		"lifecycle-manager": core.HandlerFunc(func(context.Context, core.Delivery) error { return nil }),
	}
	lab.Run(t, "fleet", func(ctx context.Context) error { return w.fleet.Receiver().Start(ctx, handlers) })
	lab.Eventually(t, lab.Patience, "this replica leads", func() bool { return !w.fleet.LeadsSince().IsZero() })
	w.open()
	day := w.fleet.LeadsSince().UTC().Format(time.DateOnly)
	w.tab.want(fmt.Sprintf(`document.getElementById('empty').innerText.includes('This replica of the operator leads since %s')`, day), true)
	w.beat("runtime-1", healthy)
	w.tab.await("the runtime", `document.getElementById('empty').hidden`)
	for _, width := range []int64{400, 1280} {
		w.tab.width(width)
		w.tab.want(fmt.Sprintf(`document.querySelector('footer').innerText.includes('This replica leads since %s')`, day), true)
	}
	w.tab.wantNoProblems()
}

// TestClusterLogin shows the page behind the filter of the metrics server of controller-runtime. A real API server
// checks the token and the rights of its service account.
func TestClusterLogin(t *testing.T) {
	plane := apiserver.StartT(t, apiserver.Options{})
	url := serveBehindFilter(t, plane.Config)
	account := func(name string, others ...client.Object) string {
		key := types.NamespacedName{Namespace: "default", Name: name}
		return string(lab.Must(lab.Account(t.Context(), plane.Client, key, others...)))
	}
	viewer := account("viewer", manifests.Object(t, `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole,
		metadata: {name: fleet-viewer}, rules: [{nonResourceURLs: [/fleet], verbs: [get]}]}`),
		manifests.Object(t, `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: fleet-viewer},
		roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: fleet-viewer},
		subjects: [{kind: ServiceAccount, namespace: default, name: viewer}]}`))
	stranger := account("stranger")
	lab.Eventually(t, lab.Patience, "the role is in force", func() bool {
		return loginAnswer(t, url, viewer).StatusCode == http.StatusOK
	})
	for name, test := range map[string]struct {
		token string
		want  int
	}{
		"viewer": {viewer, 200}, "service account without the right": {stranger, 403}, "no token": {"nonsense", 401},
	} {
		answer := loginAnswer(t, url, test.token)
		challenged := strings.HasPrefix(answer.Header.Get("WWW-Authenticate"), "Basic ")
		if answer.StatusCode != test.want || challenged != (test.want == http.StatusUnauthorized) {
			t.Errorf("%s: answer %d, want %d; challenged: %t", name, answer.StatusCode, test.want, challenged)
		}
	}
	tab := openTab(t, url, viewer)
	tab.await("Live", `document.getElementById('live').textContent === 'Live'`)
	tab.wantNoProblems()
}

// serveBehindFilter serves a fleet as the metrics server serves its extra handlers.
func serveBehindFilter(t *testing.T, config *rest.Config) (url string) {
	t.Helper()
	filter := lab.Must(controllerruntime.BrowserFilter(filters.WithAuthenticationAndAuthorization)(config, lab.Must(rest.HTTPClientFor(config))))
	handler := lab.Must(filter(logr.Discard(), statuspage.FleetHandler(lab.Must(fleet.New(fleet.Options{})))))
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	return server.URL + "/fleet"
}

func loginAnswer(t *testing.T, url, token string) *http.Response {
	t.Helper()
	request := lab.Must(http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, url, http.NoBody))
	request.Header.Set("Accept", "text/html")
	request.SetBasicAuth("anyone", token)
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	answer := lab.Must((&http.Client{Transport: transport}).Do(request))
	_ = answer.Body.Close()
	return answer
}
