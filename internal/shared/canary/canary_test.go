package canary_test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/canary"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is an API server with a webhook that a test can remove.
type cluster struct {
	mu       sync.Mutex
	bypassed int // writes that the webhook does not see
	err      error
	writes   int
	version  string // of the object that was written
}

func (c *cluster) write(_ context.Context, nonce string) (canary.Answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.writes++
	switch {
	case c.err != nil:
		return canary.Answer{}, c.err
	case c.bypassed > 0:
		c.bypassed--
		return canary.Answer{Warnings: []string{"something else"}, Version: c.version}, nil
	default:
		return canary.Answer{Warnings: []string{"something else", "runtime-watcher canary " + nonce}, Version: c.version}, nil
	}
}

func (c *cluster) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writes
}

func (c *cluster) set(bypassed int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bypassed = bypassed
	c.err = err
}

const always = 1 << 30

// start runs a canary, and returns it with what ends it.
func start(t *testing.T, write canary.Write, opts canary.Options) (*canary.Canary, func()) {
	t.Helper()

	c := must(canary.New(write, opts))(t)
	if got := c.State(); got != core.CanaryOff {
		t.Errorf("before the first write: %q, want off", got)
	}

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Start(ctx) }()

	return c, func() {
		cancel()
		check(t, <-ended)
	}
}

// The first lost write of a probe is repeated, so that one loss changes no state. Each recovery is
// reported once.
func TestStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &cluster{}
		recovered := 0
		c, stop := start(t, api.write, canary.Options{Interval: 10 * time.Second, Recovered: func() { recovered++ }})
		for _, step := range []struct {
			name      string
			bypassed  int
			err       error
			want      core.CanaryState
			recovered int
		}{
			{"at first", 0, nil, core.CanaryAlive, 0},
			{"one write missed, so perhaps others", 1, nil, core.CanaryAlive, 1},
			{"again, as one of two API servers calls no agent", 1, nil, core.CanaryLost, 1},
			{"all call it", 0, nil, core.CanaryAlive, 2},
			{"webhook removed", always, nil, core.CanaryLost, 2},
			{"still removed", always, nil, core.CanaryLost, 2},
			{"put back", 0, nil, core.CanaryAlive, 3},
			{"lease refused", 0, errors.New("forbidden"), core.CanaryFailing, 3},
			{"lease allowed", 0, nil, core.CanaryAlive, 4},
		} {
			api.set(step.bypassed, step.err)
			time.Sleep(10 * time.Second)
			synctest.Wait()

			if problem := c.Problem(); (problem == "") != (step.err == nil) {
				t.Errorf("%s: problem %q, want that of %v", step.name, problem, step.err)
			}
			if got := c.State(); got != step.want || recovered != step.recovered {
				t.Errorf("%s: state %q, recovered %d times, want %q and %d", step.name, got, recovered, step.want,
					step.recovered)
			}
		}

		stop()
	})
}

// A restored etcd has lower versions, or much higher ones if the restore raises them. Its outage
// may be shorter than the interval of the canary.
func TestARestoredAPIServerIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		api := &cluster{version: "7"}
		restored := 0
		_, stop := start(t, api.write, canary.Options{
			Interval: 10 * time.Second, Restored: func() { restored++ }, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		synctest.Wait()

		for _, step := range []struct {
			version string
			want    int
		}{
			{"10", 0},
			{"9", 1},
			{"9", 1},
			{"11", 1},
			{"opaque", 1},
			{"", 1},
			{"10", 2},
			{"100000009", 2},
			{"200000009", 3},
			{"1753647547040015001", 3},
			{"1753647577040015001", 3},
			{"1753647547040015001", 4},
			{"18446744073709551615", 4},
			{"1", 5},
		} {
			api.mu.Lock()
			api.version = step.version
			api.mu.Unlock()
			time.Sleep(10 * time.Second)
			synctest.Wait()

			if restored != step.want || strings.Count(log.String(), "restored backup") != step.want {
				t.Errorf("version %q: %d restores, want %d; log:\n%s", step.version, restored, step.want, &log)
			}
		}

		stop()
	})
}

// In the documented order the webhook configuration comes after the agent. The API server is then
// no fault yet, and the agent notices within seconds that it is called. What was written before
// leads to a resync.
func TestTheWebhookComesAfterTheAgent(t *testing.T) {
	for name, test := range map[string]struct {
		after  time.Duration // the start
		before core.CanaryState
	}{
		"within the interval": {20 * time.Second, core.CanaryOff},
		"later":               {3 * time.Minute, core.CanaryLost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &cluster{bypassed: always}
				recovered := 0
				c, stop := start(t, api.write, canary.Options{Interval: 30 * time.Second, Recovered: func() { recovered++ }})
				time.Sleep(test.after)
				synctest.Wait()

				if got := c.State(); got != test.before {
					t.Errorf("without a webhook: %q, want %q", got, test.before)
				}

				api.set(0, nil)
				time.Sleep(2 * time.Second)
				synctest.Wait()

				if got := c.State(); got != core.CanaryAlive || recovered != 1 {
					t.Errorf("2 s after the webhook: %q, recovered %d times, want alive and once", got, recovered)
				}

				writes := api.count()
				time.Sleep(5 * time.Minute)
				synctest.Wait()

				if n := api.count() - writes; n > 11 || recovered != 1 {
					t.Errorf("%d writes in 5 min after the first call, and %d recoveries, want one in 30 s, and one", n, recovered)
				}

				stop()
			})
		})
	}
}

// A fault that lasts is logged when it begins, when its error changes, and every 5 minutes.
func TestLastingFaultsAreLoggedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		api := &cluster{bypassed: always}
		_, stop := start(t, api.write, canary.Options{
			Interval: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		wait := func(d time.Duration, bypassed int, err error) {
			time.Sleep(d)
			synctest.Wait()
			api.set(bypassed, err)
		}

		wait(11*time.Minute+5*time.Second, 0, errors.New("403 Forbidden"))
		wait(time.Minute, 0, errors.New("deadline exceeded"))
		wait(6*time.Minute, 0, nil)
		wait(11*time.Minute, 0, nil)
		stop()

		for message, want := range map[string]int{
			"level=INFO msg=\"the API server does not call the agent yet": 1,
			"level=ERROR msg=\"the API server does not call the agent":    2,
			"403 Forbidden":                        1,
			"deadline exceeded":                    2,
			"msg=\"the API server calls the agent": 1,
		} {
			if n := strings.Count(log.String(), message); n != want {
				t.Errorf("%s is logged %d times, want %d:\n%s", message, n, want, &log)
			}
		}
	})
}

func TestNewNamesWrongOptions(t *testing.T) {
	_, err := canary.New(new(cluster).write, canary.Options{Interval: -time.Second})
	if err == nil || !strings.Contains(err.Error(), "Interval is -1s") {
		t.Errorf("error %v, want one that names the interval", err)
	}
}

func post(t *testing.T, method string, body []byte) *httptest.ResponseRecorder {
	t.Helper()

	w := httptest.NewRecorder()
	canary.Handler{}.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, canary.Path,
		bytes.NewReader(body)))
	return w
}

// A nonce of a canary is the only warning, and any other text of a Lease is left out.
func TestHandlerReturnsTheNonce(t *testing.T) {
	for name, test := range map[string]struct {
		nonce string
		want  string
	}{
		"nonce":      {"0123456789abcdef", `,"warnings":["runtime-watcher canary 0123456789abcdef"]`},
		"none":       {"", ""},
		"not ours":   {"Hello \"world\"", ""},
		"much of it": {strings.Repeat("a", 65), ""},
	} {
		t.Run(name, func(t *testing.T) {
			want := `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1",` +
				`"response":{"uid":"42","allowed":true` + test.want + `}}`
			review := fmt.Appendf(nil, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"42",`+
				`"object":{"metadata":{"name":"canary","annotations":{"runtime-watcher/canary-nonce":%q}}}}}`, test.nonce)
			if got := post(t, http.MethodPost, review).Body.String(); got != want {
				t.Errorf("answer %s, want %s", got, want)
			}
		})
	}
}

// A request that is no review gets the status of its fault.
func TestHandlerRefusesOtherRequests(t *testing.T) {
	for name, test := range map[string]struct {
		method string
		body   string
		want   int
	}{
		"method":  {http.MethodGet, "", http.StatusMethodNotAllowed},
		"empty":   {http.MethodPost, "", http.StatusBadRequest},
		"no json": {http.MethodPost, "{", http.StatusBadRequest},
		"no uid":  {http.MethodPost, `{"apiVersion":"admission.k8s.io/v1","request":{}}`, http.StatusBadRequest},
		"version": {
			http.MethodPost, `{"apiVersion":"admission.k8s.io/v1beta1","request":{"uid":"1"}}`,
			http.StatusBadRequest,
		},
		"huge": {http.MethodPost, strings.Repeat(" ", 300<<10), http.StatusRequestEntityTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			if w := post(t, test.method, []byte(test.body)); w.Code != test.want {
				t.Errorf("status %d %s, want %d", w.Code, w.Body, test.want)
			}
		})
	}
}

// apiServer answers patches of one Lease.
func apiServer(t *testing.T, handler http.HandlerFunc) canary.LeaseOptions {
	t.Helper()

	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	dir := t.TempDir()
	opts := canary.LeaseOptions{
		Server: server.URL, TokenFile: filepath.Join(dir, "token"),
		CAFile: filepath.Join(dir, "ca.crt"),
	}

	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for file, content := range map[string][]byte{opts.TokenFile: []byte("secret\n"), opts.CAFile: bundle} {
		check(t, os.WriteFile(file, content, 0o600))
	}

	return opts
}

func name() types.NamespacedName { return types.NamespacedName{Namespace: "watcher", Name: "canary"} }

// A write is one patch with the token, and its answer has the warnings and the version.
func TestLeaseIsPatched(t *testing.T) {
	opts := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPatch ||
			r.URL.Path != "/apis/coordination.k8s.io/v1/namespaces/watcher/leases/canary" ||
			r.Header.Get("Authorization") != "Bearer secret" ||
			r.Header.Get("Content-Type") != "application/merge-patch+json" {
			t.Errorf("request %s %s %v", r.Method, r.URL, r.Header)
		}

		w.Header().Add("Warning", `299 - "first"`)
		w.Header().Add("Warning", `299 - "runtime-watcher canary 00ff"`)
		_, _ = io.WriteString(w, `{"metadata":{"resourceVersion":"17"}}`)
	})

	got := must(must(canary.NewLease(name(), opts))(t).Write(t.Context(), "00ff"))(t)
	want := canary.Answer{Warnings: []string{"first", "runtime-watcher canary 00ff"}, Version: "17"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

// A cluster may have several API servers, and some of them may not call the agent.
func TestEachWriteMayReachAnotherAPIServer(t *testing.T) {
	from := map[string]bool{}
	lease := must(canary.NewLease(name(), apiServer(t, func(_ http.ResponseWriter, r *http.Request) { from[r.RemoteAddr] = true })))(t)
	const writes = 3
	for range writes {
		_ = must(lease.Write(t.Context(), "00ff"))(t)
	}

	if len(from) != writes {
		t.Errorf("%d writes on %d connections, want one each", writes, len(from))
	}
}

// A load balancer may lead each write to the same API server. A canary that knows all of them
// writes to each.
func TestOneOfSeveralAPIServersIsNamed(t *testing.T) {
	var bypassed, refused sync.Map
	handler := func(w http.ResponseWriter, r *http.Request) {
		text := must(io.ReadAll(r.Body))(t)
		_, nonce, _ := bytes.Cut(text, []byte(`canary-nonce":"`))
		nonce, _, _ = bytes.Cut(nonce, []byte(`"`))
		if _, on := bypassed.Load(r.Host); !on {
			w.Header().Add("Warning", `299 - "runtime-watcher canary `+string(nonce)+`"`)
		}
		if _, on := refused.Load(r.Host); on {
			w.WriteHeader(http.StatusServiceUnavailable)
		}

		_, _ = io.WriteString(w, `{}`)
	}

	first := apiServer(t, handler)
	second := httptest.NewTLSServer(http.HandlerFunc(handler)) // They have one certificate.
	t.Cleanup(second.Close)
	hosts := []string{strings.TrimPrefix(first.Server, "https://"), strings.TrimPrefix(second.URL, "https://")}
	first.Server += ", " + second.URL
	lease := must(canary.NewLease(name(), first))(t)

	for i, host := range hosts {
		for _, step := range []struct {
			broken         *sync.Map
			called, failed bool // of a check
			says           string
		}{
			{new(sync.Map), true, false, ""},
			{&bypassed, false, false, "the API server " + host + " does not call the agent"},
			{&refused, false, true, "API server " + host + ": canary: PATCH"},
		} {
			step.broken.Store(host, true)
			_, err := lease.Write(t.Context(), "00ff")
			if (err == nil) != (step.says == "") || err != nil && !strings.Contains(err.Error(), step.says) {
				t.Errorf("server %d: error %v, want %q", i, err, step.says)
			}

			called, err := lease.Check(t.Context())
			if called != step.called || (err != nil) != step.failed {
				t.Errorf("server %d: the check has %t and %v, want %t and a failure %t", i, called, err, step.called, step.failed)
			}

			step.broken.Delete(host)
		}
	}
}

// severalServers are API servers with one certificate. Each has another handler.
func severalServers(t *testing.T, handlers ...http.HandlerFunc) (opts canary.LeaseOptions, hosts []string) {
	t.Helper()
	for i, handler := range handlers {
		if i == 0 {
			opts = apiServer(t, handler)
			hosts = append(hosts, strings.TrimPrefix(opts.Server, "https://"))
			continue
		}

		server := httptest.NewTLSServer(handler)
		t.Cleanup(server.Close)
		opts.Server += "," + server.URL
		hosts = append(hosts, strings.TrimPrefix(server.URL, "https://"))
	}
	return opts, hosts
}

func refuses(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }

// calls answers a write as an API server that calls the agent.
func calls(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	_, nonce, _ := bytes.Cut(text, []byte(`canary-nonce":"`))
	nonce, _, _ = bytes.Cut(nonce, []byte(`"`))
	w.Header().Add("Warning", `299 - "runtime-watcher canary `+string(nonce)+`"`)
	_, _ = io.WriteString(w, `{}`)
}

func callsNot(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) }

// An API server that is down, or that does not answer, hides no other one. Changes pass that other
// one without the agent.
func TestAFailedAPIServerHidesNoOther(t *testing.T) {
	t.Parallel()
	for title, test := range map[string]struct {
		servers []http.HandlerFunc
		// says is the beginning of the error, with the number of a server.
		says string
		of   int
	}{
		"all call the agent":           {[]http.HandlerFunc{calls, calls, calls}, "", 0},
		"one is down":                  {[]http.HandlerFunc{refuses, calls, calls}, "API server %s: canary: PATCH", 0},
		"one is down, one calls not":   {[]http.HandlerFunc{refuses, calls, callsNot}, "the API server %s does not call the agent", 2},
		"one calls not, one is down":   {[]http.HandlerFunc{callsNot, refuses, calls}, "the API server %s does not call the agent", 0},
		"the last is the first to say": {[]http.HandlerFunc{calls, refuses, refuses}, "API server %s: canary: PATCH", 1},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()

			opts, hosts := severalServers(t, test.servers...)
			_, err := must(canary.NewLease(name(), opts))(t).Write(t.Context(), "00ff")

			if test.says == "" {
				check(t, err)
				return
			}

			if want := fmt.Sprintf(test.says, hosts[test.of]); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
		})
	}
}

// The time of a write is for all API servers, and one of them may take all of it.
func TestAStalledAPIServerHidesNoOther(t *testing.T) {
	t.Parallel()

	ctx, cancel := context.WithCancel(t.Context())
	stalls := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		<-r.Context().Done()
	}
	opts, hosts := severalServers(t, stalls, func(w http.ResponseWriter, r *http.Request) {
		defer cancel() // In the place of the end of that time.
		callsNot(w, r)
		_ = http.NewResponseController(w).Flush()
	})

	ends, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()

	_, err := must(canary.NewLease(name(), opts))(t).Write(ends, "00ff")
	if ctx.Err() == nil {
		t.Errorf("the second API server %s was not written to: %v", hosts[1], err)
	}
}

// The state is lost and not failing, because the write took place. Its version counts, too.
func TestAnUncalledServerIsNoFailedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		api := &cluster{version: "7"}
		recovered := 0
		restored := 0
		c, stop := start(t, func(ctx context.Context, nonce string) (canary.Answer, error) {
			answer, err := api.write(ctx, nonce)
			if err == nil && !strings.Contains(strings.Join(answer.Warnings, ""), nonce) {
				err = canary.Uncalled("10.0.0.2:6443")
			}
			return answer, err
		}, canary.Options{
			Interval: 10 * time.Second, Recovered: func() { recovered++ }, Restored: func() { restored++ },
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})

		synctest.Wait()
		for _, step := range []struct {
			bypassed            int
			version             string
			state               core.CanaryState
			problem             string
			recovered, restored int
		}{
			{always, "9", core.CanaryLost, "the API server 10.0.0.2:6443 does not call the agent", 0, 0},
			{always, "5", core.CanaryLost, "the API server 10.0.0.2:6443 does not call the agent", 0, 1},
			{0, "6", core.CanaryAlive, "", 1, 1},
		} {
			api.set(step.bypassed, nil)
			api.mu.Lock()
			api.version = step.version
			api.mu.Unlock()
			time.Sleep(10 * time.Second)
			synctest.Wait()

			if c.State() != step.state || c.Problem() != step.problem || recovered != step.recovered || restored != step.restored {
				t.Errorf("%s, problem %q, %d recoveries, %d restores, want %+v", c.State(), c.Problem(), recovered, restored, step)
			}
		}

		stop()
		if n := strings.Count(log.String(), "10.0.0.2:6443"); n != 1 {
			t.Errorf("the server is in %d lines, want 1:\n%s", n, &log)
		}
	})
}

func TestRefusedPatchIsAnError(t *testing.T) {
	opts := apiServer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","message":"leases \"canary\" is forbidden"}`))
	})
	if _, err := must(canary.NewLease(name(), opts))(t).Write(t.Context(), "00ff"); err == nil || !strings.Contains(err.Error(), "is forbidden") {
		t.Errorf("error %v, want one with the words of the API server", err)
	}
}

// The agent reads its own webhook configuration, and nothing else.
func TestConfigurationIsRead(t *testing.T) {
	for title, test := range map[string]struct {
		status int
		body   string
		want   string
		fails  string
	}{
		"there":     {http.StatusOK, `{"webhooks":[]}`, `{"webhooks":[]}`, ""},
		"missing":   {http.StatusNotFound, `{"message":"not found"}`, "", ""},
		"forbidden": {http.StatusForbidden, `{"message":"cannot get resource"}`, "", "cannot get resource"},
		"failing":   {http.StatusInternalServerError, "broken", "", "500"},
	} {
		t.Run(title, func(t *testing.T) {
			opts := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
				const path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/watcher"
				if r.Method != http.MethodGet || r.URL.Path != path || !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") {
					t.Errorf("request %s %s, want one GET with a token", r.Method, r.URL)
				}

				w.WriteHeader(test.status)
				_, _ = io.WriteString(w, test.body)
			})

			text, err := must(canary.NewConfiguration("watcher", opts))(t).Read(t.Context())
			if string(text) != test.want || (err != nil) != (test.fails != "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("text %q and error %v, want %q and %q", text, err, test.want, test.fails)
			}
		})
	}
}

// A check changes nothing, and shows whether an agent was called for this very write.
func TestCheckIsADryRun(t *testing.T) {
	for title, test := range map[string]struct {
		status int
		warn   func(nonce string) string
		called bool
		failed bool
	}{
		"called":    {http.StatusOK, func(nonce string) string { return nonce }, true, false},
		"not":       {http.StatusOK, func(string) string { return "00ff" }, false, false},
		"forbidden": {http.StatusForbidden, func(nonce string) string { return nonce }, false, true},
	} {
		t.Run(title, func(t *testing.T) {
			opts := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
				var lease struct {
					Metadata struct {
						Annotations map[string]string `json:"annotations"`
					} `json:"metadata"`
				}
				if err := json.NewDecoder(r.Body).Decode(&lease); err != nil || r.URL.Query().Get("dryRun") != "All" {
					t.Errorf("request %s (%v), want a dry run", r.URL, err)
				}

				for _, nonce := range lease.Metadata.Annotations {
					w.Header().Add("Warning", `299 - "runtime-watcher canary `+test.warn(nonce)+`"`)
				}

				w.WriteHeader(test.status)
			})

			called, err := must(canary.NewLease(name(), opts))(t).Check(t.Context())
			if called != test.called || (err != nil) != test.failed {
				t.Errorf("called %t, error %v, want %t and a failure %t", called, err, test.called, test.failed)
			}
		})
	}
}

func TestLeaseFollowsItsCABundle(t *testing.T) {
	opts := apiServer(t, func(http.ResponseWriter, *http.Request) {})
	lease := must(canary.NewLease(name(), opts))(t)
	good := must(os.ReadFile(opts.CAFile))(t)

	stranger := must(testpki.NewCA("stranger", testpki.Options{}))(t)
	for _, step := range []struct {
		bundle []byte
		want   string
	}{
		{good, ""}, {stranger.PEM, "x509"}, {[]byte("half"), "no certificate in PEM"}, {good, ""},
	} {
		check(t, os.WriteFile(opts.CAFile, step.bundle, 0o600))
		if _, err := lease.Write(t.Context(), "00ff"); (err == nil) != (step.want == "") || err != nil &&
			!strings.Contains(err.Error(), step.want) {
			t.Errorf("error %v, want %q", err, step.want)
		}
	}
}

// The connection of a server that froze in the handshake is given up, so that a later write
// succeeds.
func TestStalledHandshakeEnds(t *testing.T) {
	t.Parallel()

	opts := apiServer(t, func(http.ResponseWriter, *http.Request) {})
	frozen := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer frozen.Close()

	target := strings.TrimPrefix(opts.Server, "https://")
	var relay, connections sync.WaitGroup
	defer connections.Wait()

	relay.Go(func() { serveAllButTheFirst(frozen, target, &connections) })
	defer relay.Wait()
	defer frozen.Close()

	opts.Server = "https://" + frozen.Addr().String()
	lease := must(canary.NewLease(name(), opts))(t)
	write := func(within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()

		_, err := lease.Write(ctx, "00ff")
		return err
	}
	if err := write(time.Second); err == nil {
		t.Fatal("the server answered, want it frozen")
	}
	if err := write(time.Minute); err != nil {
		t.Errorf("after the freeze: %v", err)
	}
}

// serveAllButTheFirst relays connections to a target, except the first one, which hangs.
func serveAllButTheFirst(from net.Listener, target string, connections *sync.WaitGroup) {
	for n := 0; ; n++ {
		conn, err := from.Accept()
		if err != nil {
			return
		}

		connections.Go(func() {
			defer conn.Close()

			if n == 0 {
				_, _ = io.Copy(io.Discard, conn)
				return
			}

			to, err := net.Dial("tcp", target)
			if err != nil {
				return
			}
			defer to.Close()

			go func() { _, _ = io.Copy(to, conn); _ = to.Close() }()
			_, _ = io.Copy(conn, to)
		})
	}
}

// An invalid option is an error, which says what is expected.
func TestNewLeaseRefuses(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	good := apiServer(t, func(http.ResponseWriter, *http.Request) {})

	for want, change := range map[string]func(*canary.LeaseOptions, *types.NamespacedName){
		"https://host:port":   func(o *canary.LeaseOptions, _ *types.NamespacedName) { o.Server = "http://x" },
		"<namespace>/<name>":  func(_ *canary.LeaseOptions, n *types.NamespacedName) { n.Name = "" },
		"CA bundle":           func(o *canary.LeaseOptions, _ *types.NamespacedName) { o.CAFile = "nowhere" },
		"no certificate":      func(o *canary.LeaseOptions, _ *types.NamespacedName) { o.CAFile = o.TokenFile },
		"KUBERNETES_SERVICE_": func(o *canary.LeaseOptions, _ *types.NamespacedName) { o.Server = "" },
	} {
		opts := good
		lease := name()
		change(&opts, &lease)
		if _, err := canary.NewLease(lease, opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that names %q", err, want)
		}
	}
}

func TestNewLeaseFindsTheAPIServerOfThePod(t *testing.T) {
	opts := apiServer(t, func(http.ResponseWriter, *http.Request) {})
	opts.Server = ""
	t.Setenv("KUBERNETES_SERVICE_HOST", "::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")

	if _, err := canary.NewLease(name(), opts); err != nil {
		t.Errorf("error %v, want an API server", err)
	}
}

func FuzzReview(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","request":{"uid":"1","object":{"metadata":{"annotations":{"runtime-watcher/canary-nonce":"00"}}}}}`))
	f.Add([]byte(`{"request":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		w := post(t, http.MethodPost, body)
		if w.Code != http.StatusOK && w.Code != http.StatusBadRequest && w.Code != http.StatusRequestEntityTooLarge {
			t.Errorf("status %d", w.Code)
		}
	})
}

func must[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		check(tb, err)
		return value
	}
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
