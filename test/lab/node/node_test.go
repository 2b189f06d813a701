package node

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

const (
	patience = 5 * time.Minute
	image    = "agent.example/agent:test"
	address  = "listener.example:443"
)

// TestNode installs the agent, and looks at its pods from outside. Package test/controlplane/chain shows
// rollouts, changed Secrets and the removal.
func TestNode(t *testing.T) {
	rig.SkipShort(t)
	n := New(t, Options{
		Images: map[string]string{image: rig.Build(t, "cmd/agent")},
		Hosts:  map[string]string{address: rig.Address(rig.FreePort(t))},
	})
	plane := apiserver.StartT(t, apiserver.Options{APIServerArgs: n.APIServerArgs()})
	n.Start(plane)
	install(t, plane)
	pod := readyPods(t, n)[0]
	confined(t, pod)
	ownsNothing(t, n, pod)
	if err := syscall.Kill(pod.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, patience, "the killed process is started again", func() bool {
		after := n.Pods(deployment())[0]
		return after.Name == pod.Name && after.Restarts > 0 && after.Ready && after.Pid != pod.Pid
	})
}

func deployment() types.NamespacedName {
	return types.NamespacedName{Namespace: installation.Name, Name: installation.Name}
}

// install returns when an agent is installed.
func install(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	pki := rig.NewPKI(t)
	leaf, err := pki.CA.Client("runtime-1", testpki.Options{
		DNSNames: []string{installation.Name + "." + installation.Name + ".svc"}, Usages: rig.BothUsages(),
	})
	if err != nil {
		t.Fatal(err)
	}
	watched := watch.Watch{Manager: "tester", Name: types.NamespacedName{Namespace: "default", Name: "tester"}}
	watched.Resource.Version, watched.Resource.Resource = "v1", "configmaps"
	runtime := installation.Runtime{
		ID: "runtime-1", Client: plane.Client, Secret: testpki.Files(leaf, pki.CA),
		Watches: []watch.Watch{watched},
	}
	installer, err := installation.New(image, address, installation.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, patience, "the agent is installed", func() bool {
		status, err := installer.Install(t.Context(), runtime)
		if err != nil {
			t.Log("it is repeated: ", err)
		}
		return status.State == installation.Ready
	})
}

func readyPods(t *testing.T, n *Node) (pods []Pod) {
	t.Helper()
	rig.Eventually(t, patience, "two pods are ready", func() bool {
		pods = n.Pods(deployment())
		return len(pods) == 2 && pods[0].Ready && pods[1].Ready
	})
	return pods
}

// confined checks the user, the capabilities, the environment and the network of a process.
func confined(t *testing.T, pod Pod) {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d/", pod.Pid)
	status, err := os.ReadFile(proc + "status")
	for _, want := range []string{
		"\nUid:\t65532\t65532", "\nGid:\t65532\t65532", "\nGroups:\t65532",
		"\nCapEff:\t0000000000000000",
	} {
		if !bytes.Contains(status, []byte(want)) {
			t.Errorf("the process has not%s: %v\n%s", want, err, status)
		}
	}
	environ, err := asUserOfPods(t, "cat", proc+"environ")
	for _, want := range []string{
		"POD_NAME=" + pod.Name, "WEBHOOK_PORT=8443", "KCP_ADDR=" + address,
		"MANAGERS_FILE=/etc/runtime-watcher/managers/managers",
	} {
		if !strings.Contains("\x00"+string(environ), "\x00"+want+"\x00") {
			t.Errorf("the environment has not %s: %v", want, err)
		}
	}
	own, _ := os.Readlink("/proc/thread-self/ns/net")
	if theirs, err := asUserOfPods(t, "readlink", "-n", proc+"ns/net"); err != nil || string(theirs) == own {
		t.Errorf("the process is in the network %s, as this one: %v", theirs, err)
	}
}

// asUserOfPods returns the output of a command that the user of the pods runs. Another user may read
// these files with CAP_SYS_PTRACE only, which containers have not.
func asUserOfPods(t *testing.T, name string, args ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	return cmd.Output()
}

// ownsNothing checks that the container can change no file of its root, and that its key is for its
// group only.
func ownsNothing(t *testing.T, n *Node, pod Pod) {
	t.Helper()
	root := n.running()[0].path("/")
	if err := fs.WalkDir(os.DirFS(root), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		stat, _ := info.Sys().(*syscall.Stat_t)
		mine := stat.Uid == 65532 || stat.Gid == 65532 && info.Mode()&0o020 != 0
		if mine || info.Mode()&fs.ModeSymlink == 0 && info.Mode()&0o002 != 0 {
			t.Errorf("the container of %s can change %s", pod.Name, path)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	key, err := os.Stat(n.running()[0].path("/etc/runtime-watcher/tls/tls.key"))
	if err != nil || key.Mode() != 0o440 {
		t.Errorf("the key has mode %v, want 0440: %v", key, err)
	}
}
