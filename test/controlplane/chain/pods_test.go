package chain

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test/lab/node"
)

// podsAreConfined looks at a pod from outside, and kills its process, which is started again.
func (w *world) podsAreConfined() {
	w.t.Helper()
	pod := w.settled()[0]
	confined(w.t, pod)
	w.must(syscall.Kill(pod.Pid, syscall.SIGKILL))
	w.eventually("the killed process is started again", func() bool {
		after := w.node.Pods(deployment())[0]
		return after.Name == pod.Name && after.Restarts > 0 && after.Ready && after.Pid != pod.Pid
	})
}

// confined checks the user, the capabilities and the network of a process.
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
	// The user of the pod reads it. Another one needs CAP_SYS_PTRACE, which containers have not.
	cmd := exec.CommandContext(t.Context(), "readlink", "-n", proc+"ns/net")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	own, _ := os.Readlink("/proc/thread-self/ns/net")
	if theirs, err := cmd.Output(); err != nil || string(theirs) == own {
		t.Errorf("the process is in the network %s, as this one: %v", theirs, err)
	}
}
