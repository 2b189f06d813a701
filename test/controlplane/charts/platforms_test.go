package charts

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/node"
)

// installOn installs the chart in a runtime on a platform, with a Secret that is there before.
func installOn(t *testing.T, platform node.Platform, values ...string) *joined {
	t.Helper()
	rig.SkipShort(t)
	j := &joined{t: t, fleet: rig.Must(fleet.New(fleet.Options{}))}
	pki := rig.NewPKI(t)
	inside := agentHost + ":443"
	outside := "127.0.0.1:0"
	host := ""
	if platform.IPv6 {
		inside = "[fd00::1]:443"
		outside = "[::1]:0"
		host = "::1"
	}
	j.node = node.New(t, node.Options{
		Images:   map[string]string{agentImage: rig.Build(t, "cmd/agent")},
		Hosts:    map[string]string{inside: j.listen(pki, outside)},
		Platform: platform, Objects: true,
	})
	j.runtime = apiserver.StartT(t, apiserver.Options{Host: host, APIServerArgs: j.node.APIServerArgs()})
	j.node.Start(j.runtime)

	rig.Kubectl(t, "--kubeconfig", j.runtime.Kubeconfig, "create", "namespace", joining)
	leaf := rig.Must(pki.CA.Client(string(joins), testpki.Options{
		DNSNames: []string{rig.RuntimeDomain(joins), "runtime-watcher." + joining + ".svc"}, Usages: rig.BothUsages(),
	}))
	j.addSecret("runtime-watcher-tls", testpki.Files(leaf, pki.CA))
	j.helm(append([]string{
		"install", "agent", agent, "--set", imageSettings + ",managers={" + string(joiner) + "}",
		"--set", "controlPlane.address=" + inside + ",env.HEARTBEAT_INTERVAL=2s",
		"--set", "env.SETTLE=10ms,env.RESEND_AFTER=0s,env.CANARY_INTERVAL=5s",
	}, values...)...)
	return j
}

// listen runs a listener, and returns its address. Its certificate has the names by which agents call it.
func (j *joined) listen(pki *rig.PKI, addr string) string {
	j.t.Helper()
	ready, err := net.Listen("tcp", addr)
	if err != nil {
		rig.Missing(j.t, "needs the address %s: %v", addr, err)
	}
	serving := rig.Must(pki.CA.Server("listener", testpki.Options{
		DNSNames: []string{agentHost}, IPs: []net.IP{net.ParseIP("fd00::1")},
	}))
	pool := pki.CA.Pool()
	l := rig.Must(listener.New(listener.FromTLS(func() *x509.CertPool { return pool }, listener.PeerOptions{}), rig.Pinning(),
		map[core.Manager]core.Handler{joiner: core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
			j.changes.Note(rig.Arrival{Runtime: d.Runtime, Manager: d.Manager, Object: d.Event.Watched.Name}, d.Event.Resync)
			return nil
		})},
		listener.Options{Listener: ready, TLS: keys.ServerTLSConfig(rig.Material(serving, pki.CA)), Fleet: j.fleet}))
	rig.Run(j.t, "listener", l.Start)
	return ready.Addr().String()
}

// upgrade changes values of the release.
func (j *joined) upgrade(values ...string) {
	j.t.Helper()
	j.helm(append([]string{"upgrade", "agent", agent, "--reuse-values"}, values...)...)
}

// checks runs "agent check" in a pod until it prints each part.
func (j *joined) checks(parts ...string) {
	j.t.Helper()
	j.node.AwaitCheck(j.t, deployed, parts...)
}

// A firewall lets the API server reach the ports 443 and 10250 of pods. The check says so before a webhook makes writes
// wait, and another port helps.
func TestAnAPIServerThatReachesOnePort(t *testing.T) {
	j := installOn(t, node.Platform{Ports: []uint16{443, 10250}})
	j.checks("FAIL  webhook ", "configuration runtime-watcher is missing", "FAIL  reach ", "want a connection within 2s")
	if j.configuration() != nil {
		t.Error("there is a webhook configuration before the values ask for one")
	}

	// Without the advice, each matching write waits for the timeout of the webhook.
	j.upgrade("--set-json", joiningWatchers("configmaps"))
	var took time.Duration
	n := 0
	rig.Eventually(t, rig.Patience, "a write waits for 2 s", func() bool {
		n++
		took = j.createWatched(fmt.Sprintf("waits-%d", n))
		return took >= 2*time.Second
	})
	t.Logf("a write took %v while the API server did not reach the agent; %d were admitted without an answer", took, rig.FailedOpen(t, j.runtime))

	j.upgrade("--set", "ports.webhook=10250")
	j.reaches("port")
	j.checks("ok    webhook ")
	j.is(fleet.Fresh)

	// Without the right to write the configuration, the agent does not restore it. The check then
	// still finds the connection.
	off := rig.Runbook(t, "#### An agent that keeps its configuration")[0]
	off, _, _ = strings.Cut(off, "skr scale ")
	rig.Shell(t, rig.ShortKubectl(t, "skr", j.runtime.Kubeconfig, joining), off)
	j.checks("FAIL  webhook ", "ok    reach ")
	if j.configuration() != nil {
		t.Error("there is a webhook configuration, although the agent lost the right to write it")
	}
}

// An API server that reaches nodes and no pod needs the network of the nodes, or the informer. On as many nodes as replicas,
// a rollout cannot begin with a surplus pod.
func TestAnAPIServerThatReachesNodesOnly(t *testing.T) {
	j := installOn(t, node.Platform{NodesOnly: true, Machines: 2}, "--set-json", joiningWatchers("configmaps"))
	j.checks("FAIL  reach ")

	j.upgrade("--set", "hostNetwork=true,ports.webhook=10260,ports.metrics=10261")
	j.reaches("nodes")
	j.checks("ok    webhook ")
	before := j.node.Pods(deployed)
	j.upgrade("--set", "annotations.rollout=second")
	rig.Eventually(t, rig.Patience, "both pods are new and ready", func() bool {
		now := j.node.Pods(deployed)
		return len(now) == 2 && now[0].Ready && now[1].Ready && now[0].Name != before[0].Name && now[0].Name != before[1].Name &&
			now[1].Name != before[0].Name && now[1].Name != before[1].Name
	})

	watchers, _ := strings.CutPrefix(joiningWatchers("configmaps"), "webhooks.watchers")
	j.upgrade("--set", "hostNetwork=false,source=informer", "--set-json", "webhooks.watchers=[]", "--set-json", "informer.watchers"+watchers)
	rig.Kubectl(t, "--kubeconfig", j.runtime.Kubeconfig, "delete", "validatingwebhookconfiguration", "runtime-watcher", "--ignore-not-found")
	rig.Eventually(t, rig.Patience, "only the informer runs", func() bool {
		now := j.node.Pods(deployed)
		return len(now) == 1 && now[0].Ready && !now[0].Ending
	})
	j.reaches("informer")
	for _, port := range rig.Stored(t, j.runtime.Client, deployed, &appsv1.Deployment{}).Spec.Template.Spec.Containers[0].Ports {
		rig.Same(t, "port of the node for "+port.Name, 0, int(port.HostPort))
	}
}

// OpenShift assigns a user of the namespace to each pod, and admits none with another one.
func TestAPlatformThatAssignsUsers(t *testing.T) {
	const first = 1000660000
	j := installOn(t, node.Platform{FirstUser: first}, "--set-json", joiningWatchers("configmaps"))
	j.reaches("assigned")
	j.checks("ok    webhook ")
	for _, pod := range j.node.Pods(deployed) {
		status := string(rig.Must(os.ReadFile(fmt.Sprintf("/proc/%d/status", pod.Pid))))
		rig.Says(t, "process of "+pod.Name, status, fmt.Sprintf("\nUid:\t%d\t", first), "\nGid:\t0\t", "\nCapEff:\t0000000000000000\n")
	}
	rig.Same(t, "refused pods", 0, len(j.node.Refusals()))

	// The control: a fixed user is refused, and the former pods go on.
	before := j.node.Pods(deployed)
	j.upgrade("--set", "podSecurityContext.runAsUser=65532,podSecurityContext.fsGroup=65532")
	rig.Eventually(t, rig.Patience, "a pod with a fixed user is refused", func() bool { return len(j.node.Refusals()) > 0 })
	rig.Fails(t, "the platform", j.node.Refusals()[0], "runAsUser: want it in the ranges", "fsGroup: 65532")
	rig.Same(t, "pods", len(before), len(j.node.Pods(deployed)))
	j.upgrade("--set", "podSecurityContext.runAsUser=1000660007,podSecurityContext.fsGroup=1000660007")
	rig.Eventually(t, rig.Patience, "a user of the range is admitted", func() bool {
		now := j.node.Pods(deployed)
		return len(now) == 2 && now[0].Name != before[0].Name && now[1].Name != before[1].Name && now[0].Ready && now[1].Ready
	})
}

// Pods, Services, the API server and the control plane have IPv6 addresses only.
func TestIPv6Only(t *testing.T) {
	j := installOn(t, node.Platform{IPv6: true}, "--set-json", joiningWatchers("configmaps"))
	j.reaches("six")
	j.checks("ok    connection            [fd00::1]:443", "ok    webhook ")
	j.is(fleet.Fresh)
	service := rig.Stored(t, j.runtime.Client, deployed, &corev1.Service{})
	rig.Same(t, "the Service has an IPv6 address", true, netip.MustParseAddr(service.Spec.ClusterIP).Is6())
}
