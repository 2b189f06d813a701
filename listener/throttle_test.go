package listener_test

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// stopped is a clock that stands still.
func stopped() time.Time { return time.Unix(1000, 0) }

// Many small requests must not be the dear way to send much.
func TestLargeBodiesCostMore(t *testing.T) {
	t.Parallel()

	batch := func(body string) *http.Request {
		return withType(post(contract.V3.Path(manager), body), contract.V3.ContentType())
	}
	for name, request := range map[string]func() *http.Request{
		"announced":     func() *http.Request { return batch(strings.Repeat(" ", contract.V3.MaxBody())) },
		"not announced": func() *http.Request { return unannounced(batch("[")) },
	} {
		l := newListener(t, listener.PeersFunc(known), listener.InsecureAllowAll(), &recorder{},
			listener.Options{RuntimeRate: 1, RuntimeBurst: 20, Now: stopped})
		// 17 tokens of 20 are gone after the first, and 17 are needed.
		first := serve(l, request())
		second := serve(l, request())

		after := second.Header().Get("Retry-After")
		if first.Code != http.StatusBadRequest || second.Code != http.StatusTooManyRequests || after != "14" {
			t.Errorf("%s: answers %d and %d with Retry-After %q, want 400, and 429 with 14", name, first.Code, second.Code, after)
		}
	}
}

// Headers, and bodies that nothing wants, are no way around the share either.
func TestHeadersAndUnreadBodiesCostMore(t *testing.T) {
	t.Parallel()

	headers := func(size int) func() *http.Request {
		return func() *http.Request {
			request := withType(post(contract.V3.Path(manager), ""), contract.V3.ContentType())
			request.Header.Set("Padding", strings.Repeat("a", size))
			return request
		}
	}

	body := strings.Repeat(" ", contract.V3.MaxBody())
	const burst = 6
	for name, row := range map[string]struct {
		request func() *http.Request
		allowed int // of the burst
	}{
		"control: small headers":   {headers(8 << 10), burst},
		"large headers":            {headers(60 << 10), 1},
		"a long query":             {func() *http.Request { return post("/x?"+strings.Repeat("a", 60<<10), "") }, 1},
		"control: no body":         {func() *http.Request { return post("/x", "") }, burst},
		"body of a wrong path":     {func() *http.Request { return post("/x", body) }, 1},
		"the same, not announced":  {func() *http.Request { return unannounced(post("/x", body)) }, 1},
		"body of a wrong contract": {func() *http.Request { return post("/v4/lifecycle/events", body) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			l := newListener(t, listener.PeersFunc(known), listener.InsecureAllowAll(), &recorder{},
				listener.Options{RuntimeRate: 1, RuntimeBurst: burst, Now: stopped})
			for n := range row.allowed + 1 {
				isTooFast := serve(l, row.request()).Code == http.StatusTooManyRequests
				if isTooFast != (n == row.allowed) {
					t.Errorf("request %d is too fast: %t, want %d of them", n+1, isTooFast, row.allowed)
				}
			}
		})
	}
}

// Deployed agents of v1 and v2 give up an event on 429, and try again on 503.
func TestTooFastIsRetriedOnEveryContract(t *testing.T) {
	t.Parallel()
	for contractName, want := range map[string]int{
		"v1": http.StatusServiceUnavailable, "v2": http.StatusServiceUnavailable, "v3": http.StatusTooManyRequests,
	} {
		t.Run(contractName, func(t *testing.T) {
			t.Parallel()

			var named []core.Manager
			answered := func(a hook.Answer) { named = append(named, a.Manager) }
			l := newListener(t, listener.PeersFunc(known), listener.InsecureAllowAll(), &recorder{},
				listener.Options{RuntimeRate: 1, RuntimeBurst: 1, Now: stopped, Hooks: listener.Hooks{Answered: answered}})
			body := bodyV1
			target := "/" + contractName + "/lifecycle/event"
			if contractName == "v3" {
				target += "s"
			}
			serve(l, post(target, body))

			w := serve(l, post(target, body))
			if w.Code != want || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), reasons.TooFast) {
				t.Errorf("answer %d %s with Retry-After %q, want %d with one", w.Code, w.Body, w.Header().Get("Retry-After"), want)
			}
			if want := []core.Manager{"lifecycle", "lifecycle"}; !slices.Equal(named, want) {
				t.Errorf("the answers name the managers %q, want %q", named, want)
			}
		})
	}
}

// Requests for no contract cost as much as others.
func TestWrongPathsAndMethodsAreCharged(t *testing.T) {
	t.Parallel()

	const burst = 10
	requests := map[string]func() *http.Request{
		"path": func() *http.Request { return httptest.NewRequest(http.MethodGet, "/x", http.NoBody) },
		"path that is not clean": func() *http.Request {
			return httptest.NewRequest(http.MethodGet, "/v2//event", http.NoBody)
		},
		"method":  func() *http.Request { return httptest.NewRequest(http.MethodGet, "/v3/lifecycle/events", http.NoBody) },
		"manager": func() *http.Request { return httptest.NewRequest(http.MethodPost, "/v3/other/events", http.NoBody) },
	}

	senders := map[string]func(*http.Request) (core.Peer, error){
		"runtime":  known,
		"stranger": func(*http.Request) (core.Peer, error) { return core.Peer{}, core.ErrUnauthenticated },
		"sender that is not known yet": func(*http.Request) (core.Peer, error) {
			return core.Peer{}, core.ErrNotReady
		},
	}

	for name, request := range requests {
		for sender, peers := range senders {
			t.Run(name+" of a "+sender, func(t *testing.T) {
				t.Parallel()

				l := newListener(t, listener.PeersFunc(peers), listener.InsecureAllowAll(), &recorder{},
					listener.Options{RuntimeRate: 1, RuntimeBurst: burst, Now: stopped})
				for n := range burst {
					if w := serve(l, request()); w.Code == http.StatusTooManyRequests {
						t.Fatalf("request %d of %d is answered 429", n, burst)
					}
				}

				serve(l, request()) // A stranger may go into debt.
				if w := serve(l, request()); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
					t.Errorf("answer %d beyond the share, want 429 with Retry-After", w.Code)
				}

				other := request()
				other.RemoteAddr = "192.0.2.200:1"
				if w := serve(l, other); sender != "runtime" && w.Code == http.StatusTooManyRequests {
					t.Error("a stranger at another address is answered 429")
				}
			})
		}
	}
}

// A flood on many connections is read as slowly as one on a single connection: the pauses of a
// runtime follow each other.
func TestFloodOnManyConnections(t *testing.T) {
	t.Parallel()

	const (
		connections = 32
		during      = 3 * time.Second
	)
	ca := newAuthority(t, "ca")
	run := start(t, listener.FromTLS(ca.roots(), listener.PeerOptions{}), listener.InsecureAllowAll(), &recorder{},
		listener.Options{RuntimeRate: 0.01, RuntimeBurst: 1, TLS: serverConfig(t, ca, tls.RequireAndVerifyClientCert, ca)})
	cert := ca.client(t, string(runtimeA)).pair()
	clients := make([]*http.Client, connections)
	for i := range clients {
		clients[i] = newClient(t, ca, true, cert)
		mustSend(t, clients[i], run.url+"/x", "", nil) // Requests that find no connection dial one each.
	}

	ctx, stop := context.WithTimeout(t.Context(), during)
	defer stop()
	var (
		group   sync.WaitGroup
		answers atomic.Int64
	)

	for _, client := range clients {
		// Many requests in parallel on each connection: HTTP/2 delivers them with one read.
		for range 20 {
			group.Go(func() {
				for ctx.Err() == nil {
					r, _ := http.NewRequestWithContext(ctx, http.MethodGet, run.url+"/x", http.NoBody)
					if response, err := client.Do(r); err == nil {
						response.Body.Close()
						answers.Add(1)
					}
				}
			})
		}
	}

	group.Wait()
	// 100 a second, and one read of each connection before its first pause.
	if n, most := answers.Load(), int64(during/time.Second*100+connections*40); n > most {
		t.Errorf("%d requests beyond the share were answered in %v, want at most %d", n, during, most)
	}
}
