// Package kit contains the parts that measuring programs share: processes with their use of
// resources, key material, agents and delays.
package kit

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

// The variables of the environment of a [Process].
const (
	roleVariable     = "BENCH_ROLE"
	settingsVariable = "BENCH_SETTINGS"
)

// Main runs the role of a [Process] or the tests, and returns the exit code.
func Main(m *testing.M, roles map[string]func(context.Context) error) int {
	role := roles[os.Getenv(roleVariable)]
	if role == nil {
		return lab.RunTests(m)
	}
	if err := role(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Settings returns the settings of this process.
func Settings[T any]() (settings T) {
	if err := json.Unmarshal([]byte(os.Getenv(settingsVariable)), &settings); err != nil {
		panic(err) // Start has encoded them.
	}
	return settings
}

// Answer answers each [Process.Ask], until the parent ends.
func Answer(answer func(question string) any) error {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if err := json.NewEncoder(os.Stdout).Encode(answer(lines.Text())); err != nil {
			return err
		}
	}
	return nil
}

// Process is this program in another role. The test ends the process.
type Process struct {
	*machine.Process

	// Lines are the lines of its standard output.
	Lines <-chan string

	t  testing.TB
	in io.Writer
}

// Start starts a process with more variables of the environment.
func Start(t testing.TB, role string, settings any, env ...string) *Process {
	t.Helper()
	lines := make(chan string, 1000)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+role, settingsVariable+"="+string(lab.Must(json.Marshal(settings))))
	cmd.Env = append(cmd.Env, env...)
	out, stdout, err := os.Pipe() // Unlike the pipe of the command, it is read completely after the process has ended.
	lab.NoError(t, err)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = stdout, os.Stderr, machine.OwnGroup()
	in := lab.Must(cmd.StdinPipe())
	p := &Process{Process: lab.Must(machine.Follow(cmd)), Lines: lines, t: t, in: in}
	_ = stdout.Close() // The child has its own descriptor.
	go func() {
		defer close(lines)
		defer out.Close()
		scanner := bufio.NewScanner(out)
		scanner.Buffer(nil, 1<<24)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		p.Kill()
		for range lines { // So that the reader ends.
		}
	})
	return p
}

// Line returns the next line.
func (p *Process) Line() string {
	p.t.Helper()
	line, ok := <-p.Lines
	if !ok {
		p.t.Fatal("the process has ended, see its standard error")
	}
	return line
}

// Ask reads the answer of a process that calls [Answer].
func (p *Process) Ask(question string, into any) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, question); err != nil {
		p.t.Fatal(err)
	}
	lab.NoError(p.t, json.Unmarshal([]byte(p.Line()), into))
}

// Usage is the use of resources of a process, memory in bytes.
type Usage struct {
	Processor      time.Duration
	Resident, Peak int64
}

// Used returns the use of resources. It fails after the end of the process.
func (p *Process) Used() (Usage, error) { return UsageOf(p.Pid()) }

// UsageOf reads the use of resources of a process (proc(5)).
func UsageOf(pid int) (u Usage, err error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return u, err
	}
	stat, statErr := process.Stat()
	status, err := process.NewStatus()
	if err = errors.Join(statErr, err); err == nil && status.VmRSS == 0 {
		err = os.ErrProcessDone
	}
	return Usage{
		Processor: time.Duration(stat.CPUTime() * float64(time.Second)), Resident: int64(status.VmRSS), Peak: int64(status.VmHWM),
	}, err
}

// Oracle knows when each runtime changed, and when it was reconciled (see [record.Now]). It is safe
// for concurrent use.
type Oracle struct {
	// Latency is the time from a change to the start of the first reconcile after the change.
	Latency Samples

	mu sync.Mutex
	// unseen contains, for each runtime, the times of the changes after which no reconcile has
	// begun.
	unseen         [][]time.Duration
	changes, looks int64
}

// NewOracle returns an oracle of n runtimes.
func NewOracle(n int) *Oracle { return &Oracle{unseen: make([][]time.Duration, n)} }

// Changed notes a change of a runtime at this moment.
func (o *Oracle) Changed(runtime int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.changes++
	o.unseen[runtime] = append(o.unseen[runtime], record.Now())
}

// Reconciled notes a reconcile of a runtime that began at a time.
func (o *Oracle) Reconciled(runtime int, began time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.looks++
	seen := 0
	all := o.unseen[runtime]
	for seen < len(all) && all[seen] <= began {
		o.Latency.Add(began - all[seen])
		seen++
	}
	o.unseen[runtime] = all[:copy(all, all[seen:])]
}

// Missing returns the number of runtimes that no reconcile has read between their last change and a
// time.
func (o *Oracle) Missing(until time.Duration) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, changes := range o.unseen {
		if len(changes) > 0 && changes[0] <= until {
			n++
		}
	}
	return n
}

// Counts returns the numbers of changes and reconciles so far.
func (o *Oracle) Counts() (changes, looks int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changes, o.looks
}

// Samples are durations. They are safe for concurrent use.
type Samples struct {
	mu  sync.Mutex
	all []time.Duration
}

// Add adds durations.
func (s *Samples) Add(d ...time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, d...)
}

// Take returns the durations so far, and removes them.
func (s *Samples) Take() Delays {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	s.all = nil
	return Sorted(all)
}

// Delays are durations in their order.
type Delays []time.Duration

// Sorted sorts durations.
func Sorted(all []time.Duration) Delays {
	slices.Sort(all)
	return all
}

// At returns a percentile in microseconds, 0 without durations.
func (d Delays) At(percent int) time.Duration {
	if len(d) == 0 {
		return 0
	}
	return d[len(d)*percent/100].Round(time.Microsecond)
}
