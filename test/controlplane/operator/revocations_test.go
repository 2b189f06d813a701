package operator_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/nats-io/nats.go"
	prom "github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
)

// revokedSenders returns the list in the ConfigMap kcp-system/revoked-senders, with its metrics.
func revokedSenders(mgr manager.Manager, registry prom.Registerer) (intake.Revocations, error) {
	changed, err := watchermetrics.NewRevocations(registry, watchermetrics.Options{})
	if err != nil {
		return nil, err
	}
	name := types.NamespacedName{Namespace: "kcp-system", Name: "revoked-senders"}
	return controllerruntime.RevocationsFromConfigMap(mgr, name, intake.RevocationOptions{Changed: changed})
}

// revocationRights are those of docs/guide/embedding.md.
const revocationRights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {namespace: kcp-system, name: revoked-senders}
rules: [{apiGroups: [""], resources: [configmaps], resourceNames: [revoked-senders], verbs: [list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: kcp-system, name: revoked-senders}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: revoked-senders}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: revoking-operator}]`

const (
	overHTTP core.RuntimeID = "runtime-http"
	overNATS core.RuntimeID = "runtime-nats"
	honest   core.RuntimeID = "runtime-honest"
	revoking core.Manager   = "my-operator"
)

// receiving is a replica of an operator with a listener and a consumer.
type receiving struct {
	url      string
	listener *listener.Listener
	fleet    *fleet.Fleet
	registry *prom.Registry

	mu        sync.Mutex
	concluded map[core.Reason]int
	underWay  int
}

// newReceiving runs a replica with the rights of a user.
func (l *lab) newReceiving(t *testing.T, user *rest.Config, broker *rig.Broker) *receiving {
	t.Helper()
	r := &receiving{
		fleet: rig.Must(fleet.New(fleet.Options{})), registry: prom.NewRegistry(), concluded: map[core.Reason]int{},
	}
	mgr := rig.Must(manager.New(user, manager.Options{
		Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0", Logger: logr.Discard(),
	}))
	revoked := rig.Must(revokedSenders(mgr, r.registry))
	handlers := map[core.Manager]core.Handler{revoking: core.HandlerFunc(r.handle)}

	addr := rig.Address(rig.FreePort(t))
	material := l.ServerMaterial()
	r.listener = rig.Must(listener.New(listener.FromTLS(keys.Roots(material), listener.PeerOptions{}), listener.InsecureAllowAll(), handlers,
		listener.Options{Addr: addr, TLS: keys.ServerTLSConfig(material), Revocations: revoked, HandleTimeout: time.Hour}))
	consumer := rig.Must(natsjetstream.NewConsumer(broker.Operator(revoking), listener.InsecureAllowAll(), handlers, natsjetstream.Options{
		Peer: rig.MappedPeer, Revocations: revoked, Fleet: r.fleet,
		Hooks: natsjetstream.Hooks{Concluded: func(c hook.Conclusion) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.concluded[c.Reason]++
		}},
	}))
	rig.NoError(t, errors.Join(mgr.Add(r.listener), mgr.Add(consumer)))
	rig.Run(t, "manager", mgr.Start)
	r.url = "https://" + addr + "/v2/" + string(revoking) + "/event"
	rig.Eventually(t, rig.Patience, "the replica listens", func() bool { return rig.Accepts(addr) })
	return r
}

// handle holds the request for the object "slow" until its connection ends.
func (r *receiving) handle(ctx context.Context, d core.Delivery) error {
	if d.Event.Watched.Name == "slow" {
		r.mu.Lock()
		r.underWay++
		r.mu.Unlock()
		<-ctx.Done()
	}
	return ctx.Err()
}

// held returns the number of requests that the handler has ever held.
func (r *receiving) held() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.underWay
}

// messages returns how many messages of NATS ended with a reason, empty for those that were taken.
func (r *receiving) messages(reason core.Reason) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.concluded[reason]
}

// shows reports whether the metrics have these values.
func (r *receiving) shows(t *testing.T, entries, broken float64) bool {
	t.Helper()
	found := map[string]float64{}
	for _, family := range rig.Must(r.registry.Gather()) {
		found[family.GetName()] = family.GetMetric()[0].GetGauge().GetValue()
	}
	return found["runtime_watcher_revocations_entries"] == entries && found["runtime_watcher_revocations_broken"] == broken
}

// holder is a client with one certificate, and counts its open connections.
type holder struct {
	*http.Client

	mu   sync.Mutex
	open int
}

type countedConn struct {
	net.Conn

	ended func()
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.ended()
	}
	return n, err
}

func (c *countedConn) Close() error {
	c.ended()
	return c.Conn.Close()
}

func (l *lab) newHolder(t *testing.T, leaf *testpki.Leaf, http2 bool) *holder {
	t.Helper()
	h := &holder{}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	transport := &http.Transport{
		Protocols:       protocols,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: l.CA.Pool(), Certificates: []tls.Certificate{leaf.TLS}},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			h.add(+1)
			return &countedConn{Conn: conn, ended: sync.OnceFunc(func() { h.add(-1) })}, nil
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	h.Client = &http.Client{Transport: transport}
	return h
}

func (h *holder) add(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open += n
}

func (h *holder) connections() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.open
}

// send sends the event of an object, and returns the answer.
func (h *holder) send(url, object string) (status int, text string, err error) {
	body := fmt.Sprintf(`{"watched":{"Namespace":"n","Name":%q},"watchedGvk":{"group":"g","version":"v1","kind":"K"}}`, object)
	response, err := h.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, string(answer), err
}

// theft is the scene of the test: three replicas, and the certificates of a bastion that was broken into.
type theft struct {
	*lab

	replicas []*receiving
	stolen   *testpki.Leaf
	thieves  map[string]*holder // by protocol
	others   map[string]*holder // with another certificate of the same runtime
	broker   *rig.Broker
	taken    *natsjetstream.Forwarder // with the connection of the thief to the NATS server
	// disconnected is closed when that connection ends.
	disconnected chan struct{}
	ended        chan error // of requests that are under way
	sent         int        // events over NATS
	list         *corev1.ConfigMap
}

func (l *lab) newTheft(t *testing.T) *theft {
	t.Helper()
	for document := range strings.SplitSeq(revocationRights, "\n---") {
		rig.NoError(t, l.Client.Create(t.Context(), manifests.Object(t, document)))
	}
	s := &theft{
		lab: l, stolen: rig.Must(l.CA.Client(string(overHTTP), testpki.Options{})), thieves: map[string]*holder{}, others: map[string]*holder{},
		ended: make(chan error, 6), disconnected: make(chan struct{}),
		list: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp-system", Name: "revoked-senders"}},
	}
	s.broker = rig.StartBroker(t, rig.BrokerOptions{CA: l.CA}, s.users(overNATS, honest)...)
	user := rig.Must(l.AddUser("revoking-operator"))
	for range 3 {
		s.replicas = append(s.replicas, l.newReceiving(t, user, s.broker))
	}
	good := rig.Must(l.CA.Client(string(overHTTP), testpki.Options{}))
	for protocol, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		s.thieves[protocol], s.others[protocol] = l.newHolder(t, s.stolen, http2), l.newHolder(t, good, http2)
	}
	once := sync.OnceFunc(func() { close(s.disconnected) })
	s.taken = s.broker.Forwarder(overNATS, natsjetstream.ForwarderOptions{AnswerWait: rig.Patience, Timeout: rig.Patience},
		nats.DisconnectErrHandler(func(*nats.Conn, error) { once() }))
	return s
}

func (s *theft) users(runtimes ...core.RuntimeID) (all []natsjetstream.User) {
	for _, runtime := range runtimes {
		all = append(all, rig.RuntimeUser(runtime, revoking))
	}
	return append(all, rig.OperatorUser(revoking))
}

// put writes the list.
func (s *theft) put(t *testing.T, text string) {
	t.Helper()
	rig.Change(t, s.Client, s.list, func(live *corev1.ConfigMap) error {
		live.Data = map[string]string{controllerruntime.RevocationsKey: text}
		return s.Client.Update(t.Context(), live)
	})
}

// each waits until a condition holds on each replica.
func (s *theft) each(t *testing.T, what string, condition func(*receiving) bool) {
	t.Helper()
	rig.Eventually(t, rig.Patience, what, func() bool {
		return !slices.ContainsFunc(s.replicas, func(r *receiving) bool { return !condition(r) })
	})
}

// want sends an event to each replica. A client may still hold a connection that the server has just closed.
func (s *theft) want(t *testing.T, holders map[string]*holder, status int, part string) {
	t.Helper()
	for protocol, h := range holders {
		for n, r := range s.replicas {
			var code int
			var text string
			rig.Eventually(t, rig.Patience, "the replica answers", func() (answered bool) {
				var err error
				code, text, err = h.send(r.url, "object")
				return err == nil
			})
			if code != status || !strings.Contains(text, part) {
				t.Errorf("%s, replica %d: the answer is %d %q, want %d %q", protocol, n, code, text, status, part)
			}
		}
	}
}

// forward sends the next event over NATS.
func (s *theft) forward(t *testing.T, f *natsjetstream.Forwarder) error {
	t.Helper()
	s.sent++
	return f.Forward(t.Context(), revoking, core.Batch{
		Epoch: "epoch", Events: []core.Numbered{{
			Sequence: uint64(s.sent), ID: fmt.Sprintf("event-%d", s.sent),
			WatchEvent: core.WatchEvent{Watched: types.NamespacedName{Namespace: "n", Name: fmt.Sprintf("object-%d", s.sent)}, WatchedGVK: clusterKind()},
		}},
		Heartbeat: &core.Heartbeat{
			ID: fmt.Sprintf("heartbeat-%d", s.sent), Time: time.Now(), Number: uint64(s.sent), Sequence: uint64(s.sent), Interval: time.Minute,
			Instance: "agent-0",
		},
	})
}

// testRevocations cuts a thief off by a ConfigMap: on each of three replicas, over HTTP/1.1, HTTP/2 and NATS, without a
// restart. The replicas have the right to read this one ConfigMap and no other.
func (l *lab) testRevocations(t *testing.T) {
	s := l.newTheft(t)
	s.each(t, "a replica without a list is broken", func(r *receiving) bool { return r.shows(t, 0, 1) && r.listener.Ready() != nil })
	s.want(t, s.thieves, http.StatusServiceUnavailable, "")

	rig.NoError(t, l.Client.Create(t.Context(), s.list))
	s.put(t, "# nothing yet\n")
	s.each(t, "each replica has the empty list", func(r *receiving) bool { return r.shows(t, 0, 0) && r.listener.Ready() == nil })
	s.want(t, s.thieves, http.StatusOK, "")
	s.want(t, s.others, http.StatusOK, "")
	for _, h := range s.thieves {
		for _, r := range s.replicas {
			go func() {
				_, _, err := h.send(r.url, "slow")
				s.ended <- err
			}()
		}
	}
	s.each(t, "requests of the thief are under way", func(r *receiving) bool { return r.held() == 2 })
	s.each(t, "each replica has taken messages of the thief", func(r *receiving) bool {
		rig.NoError(t, s.forward(t, s.taken))
		return r.messages("") > 0
	})

	s.cutsOff(t)
	s.keepsTheList(t)
	s.endsTheUser(t)
}

// cutsOff lists the stolen certificate and the stolen user.
func (s *theft) cutsOff(t *testing.T) {
	t.Helper()
	before := map[string]int{}
	for protocol, h := range s.others {
		before[protocol] = h.connections()
	}
	sum := sha256.Sum256(s.stolen.TLS.Leaf.Raw)
	s.put(t, "sha256:"+hex.EncodeToString(sum[:])+" # the bastion\nname:"+string(overNATS)+"\n")
	listed := time.Now()
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		rig.Eventually(t, rig.Patience, "the connections of the thief have ended", func() bool { return s.thieves[protocol].connections() == 0 })
		t.Logf("%s: the last of the connections to three replicas ended %v after the write of the list", protocol, time.Since(listed))
	}
	s.each(t, "each replica has the list", func(r *receiving) bool { return r.shows(t, 2, 0) })
	for range cap(s.ended) {
		if err := <-s.ended; err == nil {
			t.Error("a request that was under way got an answer")
		}
	}
	taken := 0
	for _, r := range s.replicas {
		taken += r.messages("")
	}
	s.each(t, "each replica refuses messages of the thief", func(r *receiving) bool {
		if err := s.forward(t, s.taken); !errors.Is(err, core.ErrForbidden) {
			t.Fatalf("Forward = %v, want ErrForbidden", err)
		}
		return r.messages(core.ReasonRevoked) > 0
	})
	t.Logf("NATS: each of three replicas had refused a message %v after the write of the list", time.Since(listed))
	for _, r := range s.replicas {
		taken -= r.messages("")
	}
	rig.Same(t, "messages of the thief that were taken", 0, taken)
	s.each(t, "each fleet shows it", func(r *receiving) bool {
		status := r.fleet.Get(overNATS, revoking)
		return status.State == fleet.Stale && status.Reason == fleet.ReasonRevoked
	})

	s.want(t, s.thieves, http.StatusForbidden, `"revoked"`)
	s.want(t, s.others, http.StatusOK, "")
	for protocol, h := range s.others {
		rig.Same(t, protocol+": connections of the runtime with its new certificate", before[protocol], h.connections())
	}
	rig.NoError(t, s.forward(t, s.broker.Forwarder(honest, natsjetstream.ForwarderOptions{AnswerWait: rig.Patience, Timeout: rig.Patience})))
}

// keepsTheList breaks and removes the ConfigMap. The thief stays out until the list is empty.
func (s *theft) keepsTheList(t *testing.T) {
	t.Helper()
	s.put(t, "runtime-http")
	s.each(t, "each replica shows the malformed list", func(r *receiving) bool { return r.shows(t, 2, 1) })
	s.want(t, s.thieves, http.StatusForbidden, `"revoked"`)
	rig.NoError(t, s.Client.Delete(t.Context(), s.list))
	s.want(t, s.thieves, http.StatusForbidden, `"revoked"`)
	s.list = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.list.Namespace, Name: s.list.Name}, Data: map[string]string{
		controllerruntime.RevocationsKey: "name:" + string(overNATS),
	}}
	rig.NoError(t, s.Client.Create(t.Context(), s.list))
	s.each(t, "each replica has the next list", func(r *receiving) bool { return r.shows(t, 1, 0) })
	s.want(t, s.thieves, http.StatusOK, "")
}

// endsTheUser removes the user of the thief from the NATS server, which then ends its connection. The list of the
// operator does not.
func (s *theft) endsTheUser(t *testing.T) {
	t.Helper()
	select {
	case <-s.disconnected:
		t.Error("the connection to the NATS server ended before its user was removed")
	default:
	}
	s.broker.Reload(s.users(honest)...)
	reloaded := time.Now()
	select {
	case <-s.disconnected:
		t.Logf("NATS: the connection ended %v after the reload", time.Since(reloaded))
	case <-time.After(rig.Patience):
		t.Error("the connection of a removed user stays")
	}
	if conn, err := s.broker.Dial(s.broker.Certificate(overNATS)); err == nil {
		conn.Close()
		t.Error("a removed user connects again")
	}
}
