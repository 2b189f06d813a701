// Command runtime-watcher-conformance judges one end of the wire contracts: it plays the other end,
// tries each rule of docs/reference/contract-v3.md, and prints a table.
//
//	runtime-watcher-conformance receiver [flags] [command]
//	runtime-watcher-conformance sender [flags] [command]
//
// With a command, it starts the end under test, with RW_ADDRESS, RW_MANAGER, RW_CA, RW_CERT and
// RW_KEY in the environment. A receiver under test serves at the address. It may follow the script
// of coretest.ScriptedParts, and print each delivery of its operator as examples/minimal does. A
// sender under test reads one command in each line of its input: "changed <namespace> <name>" is a
// change of a ConfigMap. It stops at the end of the input. With -single, it is also judged by
// contracts v1 and v2. RW_CONTRACT names the contract (v1, v2 or v3), and RW_OWNER the owner of all
// objects, as <namespace>/<name>.
//
// Without a command, the program prints the environment and each step, and the user starts the end
// under test. Such a receiver is judged without its deliveries, and by the script only with -script.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/conformance"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "runtime-watcher-conformance:", err)
		os.Exit(1)
	}
}

// settings are those of a run. A check has a copy.
type settings struct {
	address, junit string
	manager        core.Manager
	only           regexp.Regexp
	script, single bool
	patience       time.Duration
	command        []string
	stdout, stderr io.Writer

	contract contract.Version // that a sender speaks
	ca       *testpki.CA
	dir      string // for the files of the ends under test
	// running are the processes that were started. They end with the check or the run.
	running *sync.WaitGroup
}

func parse(end conformance.End, args []string, stdout, stderr io.Writer) (settings, error) {
	const patience = 30 * time.Second
	s := settings{stdout: stdout, stderr: stderr, contract: contract.V3, running: &sync.WaitGroup{}}
	flags := flag.NewFlagSet(string(end), flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.address, "address", "", "`host:port` of the receiver; default: a free port of 127.0.0.1")
	flags.StringVar(&s.junit, "junit", "", "`file` for the results as JUnit XML")
	flags.StringVar((*string)(&s.manager), "manager", "my-operator", "`name` of the manager")
	flags.TextVar(&s.only, "only", regexp.MustCompile(""), "`expression`: judge only rules with such an ID")
	flags.BoolVar(&s.script, "script", false, "the receiver follows the script; default with a command: true")
	flags.BoolVar(&s.single, "single", false, "the sender speaks contracts v1 and v2, too, by RW_CONTRACT and RW_OWNER")
	flags.DurationVar(&s.patience, "patience", patience, "longest `time` of a prompt step")
	err := flags.Parse(args)
	s.command = flags.Args()
	s.script = s.script || len(s.command) > 0
	return s, err
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	judges := map[conformance.End]func(context.Context, settings, *report) error{
		conformance.Receiver: judgeReceiver, conformance.Sender: judgeSender,
	}
	if len(args) == 0 || judges[conformance.End(args[0])] == nil {
		return errors.New("want sender or receiver, flags, and a command")
	}
	end := conformance.End(args[0])
	s, err := parse(end, args[1:], stdout, stderr)
	if err != nil {
		return err
	}
	if s.ca, err = testpki.NewCA("runtime-watcher-conformance", testpki.Options{}); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "conformance"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(s.dir) }() //nolint:gosec // It was made above.
	to := newReport(end, &s.only)
	err = judges[end](ctx, s, to)
	s.running.Wait()
	if err != nil {
		return err
	}
	return to.write(stdout, s.junit)
}

// process is an end under test, and its files with key material.
type process struct {
	volume *testpki.Volume
	stdin  io.Writer
	// closeInput ends the input. It is nil if the user runs the end.
	closeInput func() error
	ended      chan struct{} // closed when the process ended
}

// start runs the command with a certificate until ctx ends, or asks the user for it. line gets each
// line of the output.
func (s *settings) start(ctx context.Context, leaf *testpki.Leaf, line func([]byte)) (*process, error) {
	dir, err := os.MkdirTemp(s.dir, "")
	if err != nil {
		return nil, err
	}
	p := &process{volume: testpki.NewVolume(dir), stdin: s.stdout, ended: make(chan struct{})}
	if err := p.volume.Write(testpki.Files(leaf, s.ca)); err != nil {
		return nil, err
	}
	ca, cert, key := p.volume.Paths()
	environment := []string{
		"RW_ADDRESS=" + s.address, "RW_MANAGER=" + string(s.manager), "RW_CA=" + ca, "RW_CERT=" + cert, "RW_KEY=" + key,
		"RW_CONTRACT=" + string(s.contract), "RW_OWNER=" + owner,
	}
	if len(s.command) == 0 {
		_, err := fmt.Fprintf(s.stdout, "start the end under test anew with %s\n", strings.Join(environment, " "))
		return p, err
	}
	cmd := exec.CommandContext(ctx, s.command[0], s.command[1:]...) //nolint:gosec // The user names it.
	cmd.Env, cmd.Stderr = append(os.Environ(), environment...), s.stderr
	stdin, inErr := cmd.StdinPipe()
	stdout, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		return nil, err
	}
	p.stdin, p.closeInput = stdin, stdin.Close
	s.running.Go(func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			line(lines.Bytes())
		}
		_ = cmd.Wait()
	})
	return p, nil
}
