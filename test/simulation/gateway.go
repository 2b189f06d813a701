package simulation

import (
	"bytes"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// serveOperators makes the control plane reachable: directly, by NATS, or behind a gateway that terminates TLS.
func (w *world) serveOperators() {
	switch {
	case w.plan.NATS:
		w.serveBroker()
		return
	case !w.plan.Gateway:
		w.network.serve(serverName, w.nextOperator)
		return
	}
	front := newServer("gateway")
	w.network.serve(serverName, func() *server { return front })
	w.network.serve("operator", w.nextOperator)
	gateway := &http.Server{
		Handler: w.gateway(), TLSConfig: keys.ServerTLSConfig(&w.server), ErrorLog: log.New(io.Discard, "", 0),
	}
	w.closers = append(w.closers, func() { _ = gateway.Close() })
	go func() { _ = gateway.ServeTLS(front, "", "") }()
}

// nextOperator returns the replicas round-robin.
func (w *world) nextOperator() *server {
	w.mu.Lock()
	defer w.mu.Unlock()
	for range w.operators {
		w.turn++
		if o := w.operators[w.turn%len(w.operators)]; o != nil {
			return o.server
		}
	}
	return nil
}

// gateway returns a reverse proxy that adds the client certificate, and opens a connection for each request.
func (w *world) gateway() http.Handler {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return w.network.dial(ctx, "gateway", "operator")
	}}
	proxy := &httputil.ReverseProxy{
		Transport: repeating{w, retrying{transport}},
		ErrorLog:  log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: "operator"})
			r.Out.Header.Set("X-Forwarded-Client-Cert", lab.ByGateway(r.In.TLS.PeerCertificates[0]))
		},
	}
	return http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		runtime, manager := r.TLS.PeerCertificates[0].Subject.CommonName, managerOf(r)
		w.history.Requested(runtime, manager)
		_, dropped := w.behaviour.any(GatewayDrops)
		w.history.Dropped(runtime, manager, dropped)
		if !w.behaviour.intercept(answer, r) {
			proxy.ServeHTTP(answer, r)
		}
		if _, on := w.behaviour.any(GatewayRetryAfter); on {
			w.history.RetryAfter(runtime, manager, retryAfterSeconds*time.Second)
		}
	})
}

// managerOf returns the manager of a path /<contract>/<manager>/...
func managerOf(r *http.Request) core.Manager {
	parts := strings.Split(r.URL.Path, "/")
	if len(parts) < 3 {
		return ""
	}
	return core.Manager(parts[2])
}

// retrying tries up to three replicas after 503, as gateways do by default. It returns the last answer.
type retrying struct{ next http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (r retrying) RoundTrip(request *http.Request) (answer *http.Response, err error) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return nil, err
	}
	const attempts = 3
	for attempt := 1; ; attempt++ {
		request.Body = io.NopCloser(bytes.NewReader(body))
		answer, err = r.next.RoundTrip(request)
		if attempt == attempts || err == nil && answer.StatusCode != http.StatusServiceUnavailable {
			return answer, err
		}
		if err == nil {
			_ = answer.Body.Close()
		}
	}
}

// repeating forwards each request a second time during GatewayRepeats, and drops the second answer.
type repeating struct {
	world *world
	next  http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (r repeating) RoundTrip(request *http.Request) (*http.Response, error) {
	f, on := r.world.behaviour.any(GatewayRepeats)
	if !on {
		return r.next.RoundTrip(request)
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return nil, err
	}
	again := request.Clone(context.Background())
	again.Body = io.NopCloser(bytes.NewReader(body))
	request.Body = io.NopCloser(bytes.NewReader(body))
	r.world.tasks.Go(func() {
		sleep(time.Duration(f.Value) * time.Millisecond)
		if answer, err := r.next.RoundTrip(again); err == nil {
			_ = answer.Body.Close()
		}
	})
	return r.next.RoundTrip(request)
}
