package nats_test

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// way is a broker with an operator, and the settings of an agent.
type way struct {
	broker *lab.Broker
	env    map[string]string
}

func newWay(t *testing.T, opts lab.BrokerOptions, operator ...nats.Option) *way {
	t.Helper()
	pki := lab.NewPKI(t)
	opts.CA = pki.CA
	b := lab.StartBroker(t, opts, users()...)
	watched := lab.Must(fleet.New(fleet.Options{}))
	stop := consume(t, b.Operator(manager, operator...), new(lab.Arrivals), natsjetstream.Options{Fleet: watched})
	t.Cleanup(stop)
	w := &way{broker: b, env: map[string]string{
		"TRANSPORT": "nats", "CONTROL_PLANE_ADDRESS": b.Nodes[0].Addr, "MANAGERS": string(manager), "FORWARD_TIMEOUT": "5s",
	}}
	maps.Copy(w.env, lab.VolumeEnv(pki.RuntimeVolume(string(sender), lab.RuntimeDomain(sender))))
	return w
}

// wants waits until a check with the settings has a line.
func (w *way) wants(t *testing.T, change map[string]string, line string) {
	t.Helper()
	env := maps.Clone(w.env)
	maps.Copy(env, change)
	var out string
	matches := func() bool {
		out, _ = lab.Check(t, env)
		return regexp.MustCompile(`(?m)^` + line).MatchString(out)
	}
	lab.Eventually(t, lab.Patience, "a check has the line "+line, matches)
}

// Some servers want TLS before their first line.
func TestServerWithTLSFirst(t *testing.T) {
	t.Parallel()
	w := newWay(t, lab.BrokerOptions{TLSFirst: true}, nats.TLSHandshakeFirst())
	first := map[string]string{"NATS_HANDSHAKE_FIRST": "true"}
	w.wants(t, first, `ok    heartbeat +manager my-operator acknowledges`)
	w.wants(t, nil, `FAIL  TLS .*NATS_HANDSHAKE_FIRST`)
	proxy := lab.StartProxy(t, port(w.broker.Nodes[0].Addr))
	w.wants(t, map[string]string{"NATS_HANDSHAKE_FIRST": "true", "CONTROL_PLANE_PROXY": "http://" + proxy.Addr}, `ok    heartbeat`)
}

// An agent reaches the server through a proxy, which is killed and started again.
func TestServerBehindAProxy(t *testing.T) {
	onEach(t, func(t *testing.T, _, p string) {
		t.Helper()
		w := newWay(t, lab.BrokerOptions{Program: p})
		proxy := lab.StartProxy(t, port(w.broker.Nodes[0].Addr))
		through := map[string]string{"CONTROL_PLANE_PROXY": "http://" + proxy.Addr}
		w.wants(t, through, `ok    proxy +`+regexp.QuoteMeta(proxy.Addr))
		w.wants(t, through, `ok    heartbeat`)
		proxy.Kill()
		w.wants(t, through, `FAIL  proxy .*`+regexp.QuoteMeta(proxy.Addr))
		proxy.Launch()
		proxy.Await()
		w.wants(t, through, `ok    heartbeat`)
		closed := lab.StartProxy(t, "1")
		w.wants(t, map[string]string{"CONTROL_PLANE_PROXY": "http://" + closed.Addr}, `FAIL  proxy .*403.*allow CONNECT`)
	})
}

// No change is lost while the proxy is killed and started again, and the log names the proxy.
func TestNoChangeIsLostBehindAProxy(t *testing.T) {
	onEach(t, func(t *testing.T, _, p string) {
		t.Helper()
		pki := lab.NewPKI(t)
		arrivals := new(lab.Arrivals)
		b := lab.StartBroker(t, lab.BrokerOptions{Program: p, CA: pki.CA}, users()...)
		stop := consume(t, b.Operator(manager), arrivals, natsjetstream.Options{})
		t.Cleanup(stop)
		proxy := lab.StartProxy(t, port(b.Nodes[0].Addr))
		agent := lab.StartAgent(t, pki.RuntimeVolume(string(sender), lab.RuntimeDomain(sender)), b.Nodes[0].Addr, lab.AgentOptions{
			Env: map[string]string{
				"TRANSPORT": "nats", "MANAGERS": string(manager), "CONTROL_PLANE_PROXY": "http://" + proxy.Addr,
				"FORWARD_TIMEOUT": "2s", "MAX_BACKOFF": "1s", "SETTLE": "10ms",
			},
		})
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pki.CA.Pool(), MinVersion: tls.VersionTLS13}}
		defer transport.CloseIdleConnections()
		client := &http.Client{Transport: transport, Timeout: lab.Patience}
		n := 0
		change := func() {
			for range 10 {
				n++
				review := lab.Review(fmt.Sprintf("object-%d", n))
				lab.NoError(t, lab.Ask(t.Context(), client, "https://"+lab.Address(agent.WebhookPort)+"/validate/"+string(manager), review))
			}
		}
		change()
		for range 2 {
			proxy.Kill()
			change()
			lab.Eventually(t, lab.Patience, "the log names the proxy", func() bool {
				return strings.Contains(agent.FullLog(), `"reason":"proxy_unreachable"`)
			})
			change()
			proxy.Launch()
			proxy.Await()
			agent.AwaitDelivered()
		}
		lab.Eventually(t, lab.Patience, "all changes arrive", func() bool {
			for i := range n {
				if arrivals.Count(of(sender, fmt.Sprintf("object-%d", i+1))) == 0 {
					return false
				}
			}
			return true
		})
		t.Logf("%d changes, 0 lost", n)
	})
}

func port(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}
