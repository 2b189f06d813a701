package charts

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/node"
)

const (
	proxyHost     = "proxy.example:3128"
	proxySecret   = "proxy"
	proxyPassword = "pass-word"
)

// TestAProxyIsTheOnlyWay installs the chart in a runtime whose pods reach the control plane through
// a proxy with a password alone. The proxy is a real one. It is killed and started again while
// objects are written, and no change is lost. The fleet names the proxy afterwards.
func TestAProxyIsTheOnlyWay(t *testing.T) {
	pki := rig.NewPKI(t)
	var proxy *rig.Proxy
	j := newJoined(t, pki, map[string]string{agentImage: rig.Build(t, "cmd/agent")}, func(plane string) map[string]string {
		proxy = rig.StartProxy(t, "443", "BasicAuth agent "+proxyPassword, "Upstream http "+newResolver(t, plane))
		return map[string]string{proxyHost: proxy.Addr} // And none to the control plane.
	})
	j.addSecret("runtime-watcher-tls", testpki.Files(rig.Must(rig.RuntimeLeaf(pki.CA, string(joins), rig.RuntimeDomain(joins))), pki.CA))
	j.addSecret(proxySecret, map[string][]byte{"credentials": []byte("agent:" + proxyPassword)})
	j.helm("install", "agent", agent, "--set", imageSettings, "--set", joiningSettings, "--set-json", joiningWatchers("configmaps"),
		"--set", "tls.serving.generate=true,env.MAX_BACKOFF=1s",
		"--set", "controlPlane.proxy=http://"+proxyHost+",controlPlane.proxyCredentials.secretName="+proxySecret)
	j.reaches("first")
	j.is(fleet.Fresh)
	rig.Same(t, "ports of the network policy", []int32{3128}, j.portsOut())

	w := &writer{of: j, prefix: "during"}
	for lapse := range 3 {
		proxy.Kill()
		w.more(10)
		j.is(fleet.Stale)
		if lapse == 0 {
			j.logs(`"reason":"proxy_unreachable"`, "proxy "+proxyHost)
		}
		w.more(10)
		proxy.Launch()
		proxy.Await()
		j.is(fleet.Fresh)
	}
	w.allArrive()
	j.names("proxy_unreachable", "proxy "+proxyHost)

	// A wrong password is noticed with the next connection. The correct one needs no restart.
	j.addSecret(proxySecret, map[string][]byte{"credentials": []byte("agent:wrong")})
	var restarted time.Time
	restart := func() {
		proxy.Kill()
		proxy.Launch()
		proxy.Await()
		restarted = time.Now()
	}
	restart()
	j.logs(`"reason":"proxy_unauthorized"`)
	rig.Eventually(t, rig.Patience, "the runtime is stale", func() bool {
		// Before its files are replaced, an agent may connect with the former password, and stay connected.
		if time.Since(restarted) > 20*time.Second {
			restart()
		}
		return j.fleet.Get(joins, joiner).State == fleet.Stale
	})
	j.addSecret(proxySecret, map[string][]byte{"credentials": []byte("agent:" + proxyPassword)})
	j.reaches("unlocked")
	j.is(fleet.Fresh)
	j.names("proxy_unauthorized", "status 401")

	// The environment has the same effect.
	var first []string
	for _, pod := range j.node.Pods(deployed) {
		first = append(first, pod.Name)
	}
	j.helm("upgrade", "agent", agent, "--reuse-values", "--set", "controlPlane.proxy=,controlPlane.proxyCredentials.secretName=",
		"--set", "env.HTTPS_PROXY=http://agent:"+proxyPassword+"@"+proxyHost+`,env.NO_PROXY=.svc\,.cluster.local`)
	rig.Same(t, "ports of the network policy", []int32{443, 3128}, j.portsOut())
	j.reaches("environment")
	rig.Eventually(t, rig.Patience, "the pods of the first release are gone", func() bool {
		return !slices.ContainsFunc(j.node.Pods(deployed), func(pod node.Pod) bool { return slices.Contains(first, pod.Name) })
	})
	j.is(fleet.Fresh)
	if text := string(j.node.Log(deployed)); strings.Contains(text, proxyPassword) {
		t.Errorf("the log has the password:\n%.2000s", text)
	}
}

// TestThePolicyOpensTheWayThroughAProxy compares the ports of the chart with those of an installer.
func TestThePolicyOpensTheWayThroughAProxy(t *testing.T) {
	for values, want := range map[string]string{
		"": "443",
		"controlPlane.proxy=http://proxy.example:3129":                         "3129",
		"controlPlane.proxy=http://proxy.example/":                             "3128",
		"controlPlane.proxy=http://[fd00::1]":                                  "3128",
		"controlPlane.proxy=http://[fd00::1]:3129":                             "3129",
		"controlPlane.proxy=direct,env.HTTPS_PROXY=http://proxy.example:3129":  "443",
		"controlPlane.proxy=http://a:1,env.HTTPS_PROXY=http://proxy.example:2": "1",
		"env.HTTPS_PROXY=http://user:password@proxy.example:3129/":             "443 3129",
		"env.HTTPS_PROXY=http://proxy.example":                                 "443 80",
		"env.HTTPS_PROXY=proxy.example:3129":                                   "443 3129",
		"env.HTTPS_PROXY=http://[fd00::1]":                                     "443 80",
		"env.HTTPS_PROXY=HTTP://proxy.example:3129":                            "443 3129",
		"env.HTTPS_PROXY=http://proxy.example:3129/path":                       "443",
		"env.HTTPS_PROXY=http://proxy.example:99999":                           "443",
		"env.HTTPS_PROXY=http://proxy.example:443":                             "443",
		"env.HTTPS_PROXY=https://proxy.example:3129":                           "443",
		"env.HTTPS_PROXY=socks5://proxy.example:1080":                          "443",
	} {
		policy := &networkingv1.NetworkPolicy{}
		rendered := objects(t, render(t, agent, append(exampleValues(), values)...))["NetworkPolicy runtime-watcher"]
		rig.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(rendered.Object, policy))
		rig.Same(t, values, want, strings.Trim(fmt.Sprint(portsOf(policy)), "[]"))
	}
	for _, mistake := range []string{
		"controlPlane.proxy=https://proxy.example:1", "controlPlane.proxy=http://user:password@proxy.example:1", "controlPlane.proxy=proxy:1",
		"controlPlane.proxyCredentials.key=", "env.CONTROL_PLANE_PROXY=http://proxy.example:1",
	} {
		if out, err := template(t, namespace, agent, append(exampleValues(), mistake)...); err == nil {
			t.Errorf("%s: rendered\n%.300s", mistake, out)
		}
	}
}

// TestThePageOnJoining renders the chart with the values of the page, without and with a proxy.
func TestThePageOnJoining(t *testing.T) {
	blocks := regexp.MustCompile("(?s)\n```yaml\n(.*?)```\n").FindAllStringSubmatch(string(test.Read(t, "docs/guide/joining.md")), -1)
	rig.Same(t, "blocks with values", 2, len(blocks))
	args := []string{"template", "agent", agent, "--namespace", namespace, "--kube-version", "1.36.0"}
	for n, wants := range [][]string{
		{"{name: CONTROL_PLANE_ADDRESS, value: \"listener.example:443\"}", "{name: WATCHERS,", "{protocol: TCP, port: 443}"},
		{"{name: CONTROL_PLANE_PROXY, value: \"http://proxy.example:3128\"}", "secretName: proxy", "{protocol: TCP, port: 3128}"},
	} {
		file := filepath.Join(t.TempDir(), "values.yaml")
		rig.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(blocks[n][1], "…", strings.Repeat("ab", 32))), 0o600))
		args = append(args, "--values", file)
		out, err := rig.Helm(t, args...)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		rig.Says(t, "objects", out, wants...)
	}
}

// TestTheManifestsGoThroughAProxy adds the component for a proxy to both examples, as their comments say.
func TestTheManifestsGoThroughAProxy(t *testing.T) {
	for folder, values := range map[string][]string{"example": exampleValues(), "example-informer": informerValues(t)} {
		root := t.TempDir()
		for _, part := range []string{"deploy/agent", "deploy/" + folder, "controlplane/config/agent"} {
			rig.NoError(t, os.CopyFS(filepath.Join(root, part), os.DirFS(filepath.Join(test.Root(), part))))
		}
		path := filepath.Join(root, "deploy", folder, "kustomization.yaml")
		text := strings.Replace(string(rig.Must(os.ReadFile(path))), "  # - ../agent/proxy", "  - ../agent/proxy", 1)
		text = regexp.MustCompile(`(?m)^ {2}- target: \{kind: NetworkPolicy,.*\n.*\n.*\n`).ReplaceAllString(text, "")
		rig.NoError(t, os.WriteFile(path, []byte(text), 0o600))

		base := objects(t, rig.Kubectl(t, "kustomize", filepath.Dir(path)))
		have := objects(t, render(t, agent, append(values, "controlPlane.proxy=http://proxy.example.com:3128",
			"controlPlane.proxyCredentials.secretName=runtime-watcher-proxy")...))
		delete(base, "Namespace "+namespace)
		marks(t, base, "manifests")
		marks(t, have, "helm")
		for _, all := range []map[string]*unstructured.Unstructured{base, have} {
			sortMounts(t, all["Deployment runtime-watcher"])
		}
		rig.Same(t, "objects of "+folder, base, have)
	}
}

// sortMounts sorts volumes and mounts by name: a patch of kustomize adds them as the first.
func sortMounts(t *testing.T, deployment *unstructured.Unstructured) {
	t.Helper()
	spec, _, err := unstructured.NestedFieldNoCopy(deployment.Object, "spec", "template", "spec")
	rig.NoError(t, err)
	pod := spec.(map[string]any)
	for _, list := range []any{pod["volumes"], pod["containers"].([]any)[0].(map[string]any)["volumeMounts"]} {
		slices.SortFunc(list.([]any), func(a, b any) int {
			return strings.Compare(a.(map[string]any)["name"].(string), b.(map[string]any)["name"].(string))
		})
	}
}

// deployed is the Deployment of the chart.
var deployed = types.NamespacedName{Namespace: joining, Name: "runtime-watcher"}

// newResolver runs a proxy without a password that alone knows where the host of the control plane
// is, as in a private network.
func newResolver(t *testing.T, plane string) (address string) {
	t.Helper()
	l := rig.Must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	rig.Run(t, "resolver", func(ctx context.Context) error {
		server := &http.Server{
			ReadHeaderTimeout: time.Minute,
			BaseContext:       func(net.Listener) context.Context { return ctx },
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodConnect || r.Host != agentHost+":443" {
					http.Error(w, "unknown host", http.StatusBadGateway)
					return
				}
				inside, err := new(net.Dialer).DialContext(r.Context(), "tcp", plane)
				if err != nil {
					http.Error(w, err.Error(), http.StatusBadGateway)
					return
				}
				rig.Tunnel(r.Context(), w, inside)
			}),
		}
		stop := context.AfterFunc(ctx, func() { _ = server.Close() })
		defer stop()
		_ = server.Serve(l) // It returns when the server is closed.
		return nil
	})
	return l.Addr().String()
}

// addSecret creates a Secret for the agent, or replaces its content.
func (j *joined) addSecret(name string, data map[string][]byte) {
	j.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: joining, Name: name}}
	_, err := controllerutil.CreateOrUpdate(j.t.Context(), j.runtime.Client, secret, func() error {
		secret.Data = data
		return nil
	})
	rig.NoError(j.t, err)
}

func (j *joined) is(state fleet.State) {
	j.t.Helper()
	rig.Eventually(j.t, rig.Patience, "the runtime is "+string(state), func() bool { return j.fleet.Get(joins, joiner).State == state })
}

// portsOut returns the TCP ports of the last egress rule, which is the way to the control plane.
func (j *joined) portsOut() []int32 {
	j.t.Helper()
	policy := &networkingv1.NetworkPolicy{}
	rig.NoError(j.t, j.runtime.Client.Get(j.t.Context(), deployed, policy))
	return portsOf(policy)
}

func portsOf(policy *networkingv1.NetworkPolicy) (ports []int32) {
	for _, port := range policy.Spec.Egress[len(policy.Spec.Egress)-1].Ports {
		ports = append(ports, port.Port.IntVal)
	}
	return ports
}

// logs waits until one line of the log of the agents has all texts.
func (j *joined) logs(texts ...string) {
	j.t.Helper()
	rig.Eventually(j.t, rig.Patience, fmt.Sprintf("a line with %q is logged", texts), func() bool {
		for line := range strings.Lines(string(j.node.Log(deployed))) {
			if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
				return true
			}
		}
		return false
	})
}

// names waits until the last interruption of each replica has a reason, and a text in its error.
func (j *joined) names(reason core.Reason, text string) {
	j.t.Helper()
	var last []core.Interruption
	rig.Eventually(j.t, rig.Patience, fmt.Sprintf("the fleet knows of the interruption %s: %s", reason, text), func() bool {
		last = nil
		for _, replica := range j.fleet.Get(joins, joiner).Replicas {
			if replica.Heartbeat != nil {
				last = append(last, replica.Heartbeat.Interruption)
			}
		}
		return len(last) > 0 && !slices.ContainsFunc(last, func(i core.Interruption) bool {
			return i.Reason != reason || !strings.Contains(i.Error, text) || !i.Until.After(i.Since)
		})
	})
	j.t.Logf("interruptions: %+v", last)
}

// writer writes objects of which each change must arrive.
type writer struct {
	of      *joined
	prefix  string
	n       int
	longest time.Duration
}

func (w *writer) more(n int) {
	w.of.t.Helper()
	for range n {
		w.n++
		w.longest = max(w.longest, w.of.createWatched(fmt.Sprintf("%s-%d", w.prefix, w.n)))
	}
}

func (w *writer) allArrive() {
	w.of.t.Helper()
	lost := 0
	rig.Eventually(w.of.t, rig.Patience, "all changes arrive", func() bool {
		lost = 0
		for n := range w.n {
			if !w.of.hasArrived(fmt.Sprintf("%s-%d", w.prefix, n+1)) {
				lost++
			}
		}
		return lost == 0
	})
	w.of.t.Logf("%d writes, 0 lost, the longest took %s, %d admitted without an answer", w.n, w.longest, rig.FailedOpen(w.of.t, w.of.runtime))
}
