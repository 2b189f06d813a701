package simulation

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
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
		runtime := r.TLS.PeerCertificates[0].Subject.CommonName
		manager := managerOf(r)
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

// serveBroker makes a NATS server reachable by the network. Its streams are in memory. A user is known by its name
// alone, because the server takes no certificate in memory.
func (w *world) serveBroker() {
	manager := w.plan.Managers[0]
	users := []natsjetstream.User{{Name: domainOf(string(manager)), Operator: manager}}
	for i := range w.plan.Runtimes {
		name := w.plan.Runtimes[i].Name
		users = append(users, natsjetstream.User{Name: domainOf(name), Runtime: core.RuntimeID(name), Managers: []core.Manager{"*"}})
	}
	opts := &natsserver.Options{}
	w.must(opts.ProcessConfigString(string(lab.Must(natsjetstream.Authorization(users...)))))
	opts.DontListen = true
	opts.JetStream = true
	opts.StoreDir = w.pki.store
	opts.NoSigs = true
	opts.NoLog = true
	broker := lab.Must(natsserver.NewServer(opts))
	broker.Start()
	front := newServer("nats")
	w.network.serve(serverName, func() *server { return front })
	go func() {
		for conn, err := front.Accept(); err == nil; conn, err = front.Accept() {
			inside, err := broker.InProcessConn()
			w.must(err)
			go pass(conn, inside)
			go pass(inside, conn)
		}
	}()
	w.closers = append(w.closers, func() {
		_ = front.Close()
		broker.Shutdown()
		broker.WaitForShutdown()
	})
}

// pass copies until one end closes, and then closes the other one.
func pass(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_ = to.Close()
}

// natsDialer connects a process with the NATS server. The client holds a mutex until it is connected, and time would
// stand still for others that wait for it. So the connection takes no time, or fails immediately.
type natsDialer struct {
	network         *network
	client, process string
	down            func() bool
}

// Dial implements [nats.CustomDialer].
func (d natsDialer) Dial(_, _ string) (net.Conn, error) {
	if w := d.network.now(d.client); d.down() || w.refuse || w.silent || w.noAnswers {
		return nil, refused()
	}
	conn, err := d.network.dial(context.Background(), d.client, serverName)
	if near, ok := conn.(*end); ok {
		near.link.process, near.link.began = d.process, time.Now()
	}
	return conn, err
}

// connectNATS adds the parts of this model to the options that a program has.
func connectNATS(name string, dial natsDialer, opts []nats.Option) *nats.Conn {
	plain := func(o *nats.Options) error {
		o.Secure, o.TLSConfig, o.RootCAsCB, o.CustomDialer, o.SkipHostLookup, o.User = false, nil, nil, dial, true, domainOf(name)
		return nil
	}
	return lab.Must(nats.Connect("nats://"+serverName, append(opts, plain)...))
}

func noCertificate() (*tls.Certificate, *x509.CertPool) { return &tls.Certificate{}, nil }

// natsTransport is the transport of cmd/agent. The agent closes it after its last batch.
type natsTransport struct {
	*natsjetstream.Forwarder

	conn *nats.Conn
}

// Close implements [io.Closer].
func (t natsTransport) Close() error {
	t.conn.Close()
	return nil
}

func (a *agent) natsTransport() core.Forwarder {
	name := a.cluster.plan.Name
	conn := connectNATS(name, natsDialer{a.cluster.world.network, name, a.epoch, func() bool {
		return a.killed.Load() || a.paused.Load() != nil
	}}, natsjetstream.ConnectOptions(core.RuntimeID(name), noCertificate))
	return natsTransport{lab.Must(natsjetstream.NewForwarder(conn, core.RuntimeID(name), natsjetstream.ForwarderOptions{})), conn}
}

// consume receives events from the stream until the process ends.
func (o *operator) consume(verifier core.Verifier, handlers map[core.Manager]core.Handler) func(ctx context.Context) error {
	manager := o.world.plan.Managers[0]
	dialer := natsDialer{o.world.network, "operator", o.name, o.killed.Load}
	conn := connectNATS(string(manager), dialer, natsjetstream.OperatorConnectOptions(manager, noCertificate))
	consumer := lab.Must(natsjetstream.NewConsumer(conn, verifier, handlers, natsjetstream.Options{
		Fleet: o.observer(), Logger: o.logger(), MaxInFlight: o.world.plan.Places, RuntimeRate: float64(o.world.plan.Rate), RuntimeBurst: burstOf(o.world.plan.Rate),
		Stream: func(manager core.Manager) jetstream.StreamConfig {
			config := natsjetstream.StreamConfig(manager)
			config.Storage = jetstream.MemoryStorage
			return config
		},
		Peer: func(id core.RuntimeID) core.Peer {
			return core.Peer{ID: id, CommonName: string(id), DNSNames: []string{domainOf(string(id))}}
		},
	}))
	return func(ctx context.Context) error {
		defer conn.Close()
		return consumer.Start(ctx)
	}
}

// onNATS makes NATS the transport of some plans that have no fault of HTTP or of certificates.
func (d dice) onNATS(p *Plan) {
	if d.chance(0.75) || p.Gateway || p.Attacker || len(p.Managers) > 1 || p.hasAny(
		GatewayRefusesV3, KeysRotated, CertificateExpired, AgentDowngraded, LinksCut, PathsWrong,
	) {
		return
	}
	p.onStream()
}

// onStream makes NATS the transport, which has one contract.
func (p *Plan) onStream() {
	p.NATS = true
	for i := range p.Runtimes {
		p.Runtimes[i].Contract = contract.V3
		p.Runtimes[i].Fallback = false
		p.Runtimes[i].Rare = false
	}
}
