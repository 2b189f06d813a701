package hardening

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

// operator is the listener of examples/minimal as a process: native mTLS, and a line on standard
// output for each event.
type operator struct {
	addr   string
	cmd    *exec.Cmd
	stdout *output
	stderr *output
}

// output is what a process has said so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// startOperator runs a binary of examples/minimal until the test ends.
func startOperator(t *testing.T, pki *rig.PKI, binary string, env ...string) *operator {
	t.Helper()
	leaf, err := pki.CA.Server("listener", testpki.Options{})
	if err != nil {
		t.Fatal(err)
	}

	volume := pki.Volume(leaf)
	ca, cert, key := volume.Paths()
	o := &operator{addr: rig.Address(rig.FreePort(t)), stdout: &output{}, stderr: &output{}}
	o.cmd = exec.Command(binary, "-addr="+o.addr, "-manager="+manager, "-ca="+ca, "-cert="+cert, "-key="+key)
	o.cmd.Stdout, o.cmd.Stderr, o.cmd.Env = o.stdout, o.stderr, append(os.Environ(), env...)
	o.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := o.cmd.Start(); err != nil {
		t.Fatal(err)
	}

	ended := make(chan struct{})
	go func() {
		defer close(ended)

		_ = o.cmd.Wait() // It is killed.
	}()

	t.Cleanup(func() {
		_ = o.cmd.Process.Kill() // It may have ended.
		<-ended
		rig.KeepsSecrets(t, o.stderr.String(), rig.Secrets(volume)...)
		if t.Failed() {
			t.Logf("the operator said:\n%.4000s", o.stderr)
		}
	})
	rig.Eventually(t, patience, "the operator listens",
		func() bool { return strings.Contains(o.stderr.String(), "listen") })
	return o
}

// printed reports whether the operator printed a delivery of an object from a runtime.
func (o *operator) printed(runtime, name string) bool {
	for line := range strings.Lines(o.stdout.String()) {
		if strings.Contains(line, `"runtime":"`+runtime+`"`) && strings.Contains(line, `"name":"`+name+`"`) {
			return true
		}
	}
	return false
}

func eventV2(name string) io.Reader {
	return strings.NewReader(`{"watched":{"Namespace":"default","Name":"` + name +
		`"},"watchedGvk":{"group":"","version":"v1","kind":"ConfigMap"}}`)
}

// send posts one event as a runtime with that client.
func (o *operator) send(t *testing.T, client *http.Client, name string) error {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+o.addr+"/v2/"+manager+"/event",
		eventV2(name))
	if err != nil {
		return err
	}

	request.Header.Set("Content-Type", "application/json")

	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}
