package node_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/controlplane"
	"github.com/runtime-watcher/runtime-watcher/test/node"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

const (
	patience = 90 * time.Second
	image    = "agent.example/agent:test"
	runtime  = "runtime-1"
	address  = "listener.example:443"
)

var deployment = types.NamespacedName{Namespace: installation.DefaultNamespace, Name: installation.Name}

// world is a runtime in which the agent is installed, and a control plane that it tells.
type world struct {
	t       *testing.T
	pki     *rig.PKI
	plane   *rig.Plane
	runtime *controlplane.ControlPlane
	node    *node.Node
	install installation.Runtime
}

func newWorld(t *testing.T) *world {
	t.Helper()

	if testing.Short() {
		t.Skip("needs a real API server, which -short leaves out")
	}

	w := &world{t: t, pki: rig.NewPKI(t)}
	w.plane = rig.StartPlane(t, w.pki, rig.PlaneOptions{}, "tester")
	w.node = node.New(t, node.Options{
		Images: map[string]string{image: rig.Build(t, "cmd/agent")}, Hosts: map[string]string{address: w.plane.Addr},
	})
	w.runtime = controlplane.StartT(t, controlplane.Options{APIServerArgs: w.node.APIServerArgs()})
	w.node.Start(w.runtime)

	watch := admission.Watch{Manager: "tester", Name: types.NamespacedName{Namespace: "default", Name: "tester"}}
	watch.Resource.Version, watch.Resource.Resource = "v1", "configmaps"
	w.install = installation.Runtime{ID: runtime, Client: w.runtime.Client, Secret: w.secret(), Watches: []admission.Watch{watch}}

	return w
}

func (w *world) secret() map[string][]byte {
	w.t.Helper()

	leaf, err := w.pki.CA.Client(runtime, testpki.Options{
		DNSNames: []string{installation.Name + "." + installation.DefaultNamespace + ".svc"}, Usages: rig.BothUsages(),
	})
	if err != nil {
		w.t.Fatal(err)
	}

	files, err := testpki.Files(leaf, w.pki.CA)
	if err != nil {
		w.t.Fatal(err)
	}

	return files
}

// installed returns when the agent is, with two replicas that have those settings, beside what this test needs.
func (w *world) installed(settings map[string]string) {
	w.t.Helper()

	all := map[string]string{"KCP_SERVER_NAME": "localhost", "SETTLE": "10ms"}
	maps.Copy(all, settings)

	installer, err := installation.New(image, address, installation.Options{Settings: all, Canary: true})
	if err != nil {
		w.t.Fatal(err)
	}

	rig.Eventually(w.t, patience, "the agent is installed", func() bool {
		status, err := installer.Install(w.t.Context(), w.install)
		if err != nil {
			w.t.Fatal(err)
		}

		return status.State == installation.Ready
	})
}

// delivers returns when a change has arrived in the control plane.
func (w *world) delivers(what string) {
	w.t.Helper()

	n := 0

	rig.Eventually(w.t, patience, "a change arrives "+what, func() bool {
		since := time.Now()
		n++ // Not all API servers know a new webhook at once.

		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("%s-%d", strings.ToLower(strings.ReplaceAll(what, " ", "-")), n)}}
		if err := w.runtime.Client.Create(w.t.Context(), object); err != nil {
			w.t.Fatal(err)
		}

		look := rig.Look{Runtime: runtime, Object: client.ObjectKeyFromObject(object)}
		for deadline := since.Add(2 * time.Second); time.Now().Before(deadline); {
			if w.plane.StartedSince(look, since) {
				return true
			}

			<-time.After(5 * time.Millisecond)
		}

		return false
	})
}

func (w *world) ready(wanted int) []node.Pod {
	w.t.Helper()

	var pods []node.Pod

	rig.Eventually(w.t, patience, fmt.Sprintf("%d pods are ready, and no others there", wanted), func() bool {
		pods = w.node.Pods(deployment)
		count := 0

		for _, p := range pods {
			if p.Ready && !p.Ending {
				count++
			}
		}

		return count == wanted && len(pods) == wanted
	})

	return pods
}

// TestNode is the life of a Deployment: it is not about the agent, but about what tests believe of the stand-in.
func TestNode(t *testing.T) {
	w := newWorld(t)
	w.installed(nil)
	w.delivers("after the installation")

	pods := w.ready(2)
	w.confined(pods[0])
	w.secretReachesProcesses(pods)
	w.comesBack(pods[0])
	w.rolls()
	w.leaves()
}

// confined looks at the process from outside.
func (w *world) confined(pod node.Pod) {
	w.t.Helper()

	proc := fmt.Sprintf("/proc/%d/", pod.Pid)

	status, err := os.ReadFile(proc + "status")
	if err != nil {
		w.t.Fatal(err)
	}

	for _, want := range []string{"\nUid:\t65532\t65532", "\nGid:\t65532\t65532", "\nGroups:\t65532", "\nCapEff:\t0000000000000000"} {
		if !bytes.Contains(status, []byte(want)) {
			w.t.Errorf("the process has not%s:\n%s", want, status)
		}
	}

	environ, err := os.ReadFile(proc + "environ")
	if err != nil {
		w.t.Fatal(err)
	}

	for _, want := range []string{
		"POD_NAME=" + pod.Name, "WEBHOOK_PORT=8443", "CA_CERT=/etc/runtime-watcher/tls/ca.crt", "KCP_ADDR=" + address, "MANAGERS=tester",
	} {
		if !strings.Contains("\x00"+string(environ), "\x00"+want+"\x00") {
			w.t.Errorf("the environment has not %s", want)
		}
	}

	// Not that of the process, which is that of its first thread: a pod may have it.
	own, _ := os.Readlink("/proc/thread-self/ns/net")
	if theirs, err := os.Readlink(proc + "ns/net"); err != nil || theirs == own {
		w.t.Errorf("the process is in the network %s, as this one: %v", theirs, err)
	}

	key := w.node.Path(pod.Name, "/etc/runtime-watcher/tls/tls.key")

	info, err := os.Stat(key)
	if err != nil {
		w.t.Fatal(err)
	}

	if stat, _ := info.Sys().(*syscall.Stat_t); info.Mode() != 0o440 || stat.Uid != 0 || stat.Gid != 65532 {
		w.t.Errorf("the key has mode %v and owner %d:%d, want 0440 and 0:65532", info.Mode(), stat.Uid, stat.Gid)
	}
}

// secretReachesProcesses without a restart.
func (w *world) secretReachesProcesses(pods []node.Pod) {
	w.t.Helper()
	w.install.Secret = w.secret()
	w.installed(nil)

	rig.Eventually(w.t, patience, "the new certificate is mounted", func() bool {
		for _, p := range pods {
			text, err := os.ReadFile(w.node.Path(p.Name, "/etc/runtime-watcher/tls/tls.crt"))
			if err != nil {
				w.t.Fatal(err)
			}

			if !bytes.Equal(text, w.install.Secret["tls.crt"]) {
				return false
			}
		}

		return true
	})
	w.delivers("after the Secret changed")

	for i, p := range w.ready(2) {
		if p != pods[i] {
			w.t.Errorf("a changed Secret made of %+v %+v", pods[i], p)
		}
	}
}

// comesBack kills a process.
func (w *world) comesBack(pod node.Pod) {
	w.t.Helper()

	if err := syscall.Kill(pod.Pid, syscall.SIGKILL); err != nil {
		w.t.Fatal(err)
	}

	rig.Eventually(w.t, patience, "the process is back", func() bool {
		for _, p := range w.node.Pods(deployment) {
			if p.Name == pod.Name {
				return p.Restarts == 1 && p.Ready && p.Pid != pod.Pid
			}
		}

		return false
	})
}

// rolls changes the template: new pods come before the old ones go, and those end in good order.
func (w *world) rolls() {
	w.t.Helper()

	before := map[string]bool{}
	for _, p := range w.ready(2) {
		before[p.Name] = true
	}

	w.installed(map[string]string{"LOG_LEVEL": "debug"})

	rig.Eventually(w.t, patience, "all pods are new", func() bool {
		pods, staying, serving := w.node.Pods(deployment), 0, 0

		for _, p := range pods {
			if !p.Ending {
				staying++
			}

			if p.Ready {
				serving++
			}
		}

		// One that is to stay may be late with a probe, on a busy machine.
		if staying < 2 || staying > 3 || serving == 0 {
			w.t.Errorf("in the middle of the rollout, %d pods are to stay, and %d serve", staying, serving)
		}

		for _, p := range pods {
			if before[p.Name] {
				return false
			}
		}

		return len(pods) == 2
	})
	w.delivers("after the rollout")

	for name := range before {
		if said := w.node.Log(name); !strings.Contains(said, "agent stopped") {
			w.t.Errorf("pod %s did not end in good order:\n%s", name, said)
		}
	}
}

// leaves uninstalls: nothing is left, the namespace neither.
func (w *world) leaves() {
	w.t.Helper()

	installer, err := installation.New(image, address, installation.Options{Canary: true})
	if err != nil {
		w.t.Fatal(err)
	}

	rig.Eventually(w.t, patience, "the agent is removed", func() bool {
		status, err := installer.Uninstall(w.t.Context(), w.install)
		if err != nil {
			w.t.Fatal(err)
		}

		return status.State == installation.Removed
	})

	if pods := w.node.Pods(deployment); len(pods) > 0 {
		w.t.Errorf("there is still %+v", pods)
	}

	var slices discoveryv1.EndpointSliceList
	if err := w.runtime.Client.List(w.t.Context(), &slices, client.InNamespace(deployment.Namespace)); err != nil || len(slices.Items) > 0 {
		w.t.Errorf("there are still %d EndpointSlices, %v", len(slices.Items), err)
	}
}

// TestPodCannotWrite is about what of its root belongs to a container: nothing.
func TestPodCannotWrite(t *testing.T) {
	w := newWorld(t)
	w.installed(nil)

	pod := w.ready(2)[0]

	err := fs.WalkDir(os.DirFS(w.node.Path(pod.Name, "/")), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		info, err := entry.Info()
		if err != nil {
			return err
		}

		stat, _ := info.Sys().(*syscall.Stat_t)
		if stat.Uid == 65532 || info.Mode()&fs.ModeSymlink == 0 && info.Mode()&0o002 != 0 || stat.Gid == 65532 && info.Mode()&0o020 != 0 {
			return errors.New(path + " can be changed by the container")
		}

		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
