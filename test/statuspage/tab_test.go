package statuspage

import (
	"context"
	"encoding/base64"
	"iter"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// tab is a page in a headless browser.
type tab struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // chromedp keeps the browser in it.
	// problems are the errors and refusals that the browser reports.
	problems chan string
}

func browser(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	lab.Missing(t, "needs Chromium in the PATH (Debian: chromium)")
	return ""
}

// started is the browser of all tests, and how to end it.
var started struct {
	ctx  context.Context //nolint:containedctx // chromedp keeps the browser in it.
	stop func()
}

func TestMain(m *testing.M) {
	code := m.Run()
	if started.stop != nil {
		started.stop()
	}
	os.Exit(code)
}

// startBrowser starts the browser with the first test that needs it.
func startBrowser(t *testing.T) context.Context {
	t.Helper()
	if started.ctx != nil {
		return started.ctx
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:len(chromedp.DefaultExecAllocatorOptions):len(chromedp.DefaultExecAllocatorOptions)],
		chromedp.ExecPath(browser(t)), chromedp.WindowSize(1280, 760), chromedp.Flag("ignore-certificate-errors", true))
	if os.Getuid() == 0 {
		opts = append(opts, chromedp.Flag("no-sandbox", true)) // Chromium refuses to run as root with one.
	}
	allocated, end := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, cancel := chromedp.NewContext(allocated)
	started.stop = func() { cancel(); end() }
	started.ctx = ctx //nolint:fatcontext // It is set once.
	lab.NoError(t, chromedp.Do(ctx))
	return ctx
}

// openTab opens the address. The password logs in, unless the address has one.
func openTab(t *testing.T, url, password string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(startBrowser(t))
	t.Cleanup(cancel)
	opened := &tab{t: t, ctx: ctx, problems: make(chan string, 1000)}
	thrown := chromedp.Events(ctx, runtime.ExceptionThrown)
	added := chromedp.Events(ctx, cdplog.EntryAdded)
	go listen(opened, thrown, func(e runtime.EventExceptionThrown) string { return e.ExceptionDetails.Text })
	go listen(opened, added, func(e cdplog.EventEntryAdded) string { return e.Entry.Text })
	if password != "" {
		login := "Basic " + base64.StdEncoding.EncodeToString([]byte("anyone:"+password))
		call(opened, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{Headers: network.Headers{"Authorization": login}})
	}
	opened.run(chromedp.Navigate(url))
	return opened
}

// listen collects problems until the tab closes.
func listen[E any](p *tab, events iter.Seq2[E, error], text func(E) string) {
	for e, err := range events {
		if err != nil {
			return
		}
		p.problems <- text(e)
	}
}

func call[P, R any](p *tab, command cdp.Command[P, R], params P) {
	p.t.Helper()
	if _, err := chromedp.Call(p.ctx, command, params); err != nil {
		p.t.Fatal(err)
	}
}

// of returns the tab for another test.
func (p *tab) of(t *testing.T) *tab {
	t.Helper()
	return &tab{t, p.ctx, p.problems}
}

func (p *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, lab.Patience)
	defer cancel()
	lab.NoError(p.t, chromedp.Do(ctx, actions...))
}

func evaluate[T any](p *tab, expression string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, lab.Patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// eval runs a script in a scope of its own.
func (p *tab) eval(script string) {
	p.t.Helper()
	evaluate[chromedp.Void](p, "{"+script+"}")
}

func (p *tab) want(expression string, want any) {
	p.t.Helper()
	if have := evaluate[any](p, expression); !reflect.DeepEqual(have, want) {
		p.t.Errorf("%s is %#v, want %#v", expression, have, want)
	}
}

// await polls from outside of the page. Inside, the policy of the page would refuse to make a
// function of a text.
func (p *tab) await(what, condition string) {
	p.t.Helper()
	lab.Eventually(p.t, lab.Patience, what+": "+condition, func() bool { return evaluate[bool](p, condition) })
}

// pressKey presses a key as a keyboard does: a handler may prevent that its text is typed.
func (p *tab) pressKey(key string) {
	p.t.Helper()
	call(p, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: key, Text: key})
	call(p, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyUp, Key: key})
}

// press types text, or presses a key of package kb.
func (p *tab) press(keys string) {
	p.t.Helper()
	p.run(chromedp.KeyEvent(keys))
}

func (p *tab) colours(scheme string) {
	p.t.Helper()
	call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
}

func (p *tab) width(pixels int64) {
	p.t.Helper()
	call(p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: pixels, Height: 760, DeviceScaleFactor: 1,
	})
}

func (p *tab) wantNoProblems() {
	p.t.Helper()
	for len(p.problems) > 0 {
		p.t.Errorf("the browser reports: %s", <-p.problems)
	}
}

func (p *tab) awaitProblem(part string) {
	p.t.Helper()
	lab.Eventually(p.t, lab.Patience, "a report of the browser: "+part, func() bool {
		return len(p.problems) > 0 && strings.Contains(<-p.problems, part)
	})
}
