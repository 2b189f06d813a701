package fairness

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// role names what this process is in place of a test, in its environment.
const role = "FAIRNESS_ROLE"

func TestMain(m *testing.M) {
	parts := map[string]func(context.Context, *wire){"listener": runListener, "flooder": runFlooder}

	run := parts[os.Getenv(role)]
	if run == nil {
		os.Exit(m.Run())
	}

	// Whatever becomes of who started it, it ends.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()

	run(ctx, newWire(os.Stdin, os.Stdout))
}

// wire carries JSON values between two processes.
type wire struct {
	*json.Encoder
	*json.Decoder
}

func newWire(in io.Reader, out io.Writer) *wire {
	return &wire{json.NewEncoder(out), json.NewDecoder(bufio.NewReader(in))}
}

func (w *wire) must(err error) {
	if err != nil {
		panic(err)
	}
}

// process is a part that runs on its own.
type process struct {
	*wire

	t testing.TB
}

// spawn starts a part with what it needs to know. It ends with the test.
func spawn(t testing.TB, name string, settings any) *process {
	t.Helper()

	cmd := exec.Command(os.Args[0], "-test.run=^$") // Its life is that of the test.
	cmd.Env = append(os.Environ(), role+"="+name)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}

	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		_ = in.Close() // Which is how it is told to end.

		if err := cmd.Wait(); err != nil {
			t.Errorf("%s ended with %v", name, err)
		}
	})

	p := &process{wire: newWire(out, in), t: t}
	p.send(settings)

	return p
}

func (p *process) send(value any) {
	p.t.Helper()

	if err := p.Encode(value); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) receive(value any) {
	p.t.Helper()

	if err := p.Decode(value); err != nil {
		p.t.Fatal(err)
	}
}
