package chain

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/node"
)

// podsAreConfined looks at a pod from outside, and kills its process, which is started again.
func (w *world) podsAreConfined() {
	w.t.Helper()
	pod := w.settled()[0]
	confined(w.t, pod)
	ownsNothing(w.t, pod)
	w.must(syscall.Kill(pod.Pid, syscall.SIGKILL))
	w.eventually("the killed process is started again", func() bool {
		after := w.node.Pods(deployment())[0]
		return after.Name == pod.Name && after.Restarts > 0 && after.Ready && after.Pid != pod.Pid
	})
}

// confined checks the user, the capabilities, the environment and the network of a process.
func confined(t *testing.T, pod node.Pod) {
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
		"POD_NAME=" + pod.Name, "WEBHOOK_PORT=8443", "KCP_ADDR=" + host + ":443",
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
func ownsNothing(t *testing.T, pod node.Pod) {
	t.Helper()
	root := pod.Root
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
	if info := rig.Must(os.Stat(root + "/etc/runtime-watcher/tls/tls.key")); info.Mode() != 0o440 {
		t.Errorf("the key has mode %v, want 0440", info.Mode())
	}
}
