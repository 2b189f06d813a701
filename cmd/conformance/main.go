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
// Without a command, a receiver is judged at -address, with the files of -ca, -cert and -key. For a
// sender, the program prints each step for the user.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"sync"
	"syscall"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/conformance"
	"github.com/runtime-watcher/runtime-watcher/keys"
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

type settings struct {
	address, junit string
	dir            string     // for the files of the ends under test
	files          keys.Paths // of a runtime, for a receiver without command
	manager        core.Manager
	only           string
	script, single bool
	// running are the processes that were started. They end with the check or the run.
	running  *sync.WaitGroup
	contract contract.Version // that a sender speaks
	patience time.Duration
	command  []string
}

func parse(end conformance.End, args []string, stderr io.Writer) (s settings, err error) {
	const patience = 30 * time.Second
	flags := flag.NewFlagSet(string(end), flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.address, "address", "", "`host:port` of the receiver; default: a free port of 127.0.0.1")
	flags.StringVar(&s.junit, "junit", "", "`file` for the results as JUnit XML")
	flags.StringVar(&s.files.CA, "ca", "", "`file` with the CA of a receiver without command")
	flags.StringVar(&s.files.Certificate, "cert", "", "`file` with the certificate of a runtime")
	flags.StringVar(&s.files.Key, "key", "", "`file` with its private key")
	flags.StringVar((*string)(&s.manager), "manager", "my-operator", "`name` of the manager")
	flags.StringVar(&s.only, "only", "", "`expression`: judge only rules with such an ID")
	flags.BoolVar(&s.script, "script", false, "the receiver follows the script; default with a command: true")
	flags.BoolVar(&s.single, "single", false, "the sender speaks contracts v1 and v2, too, by RW_CONTRACT and RW_OWNER")
	flags.DurationVar(&s.patience, "patience", patience, "longest `time` of a prompt step")
	err = flags.Parse(args)
	s.command = flags.Args()
	s.running = &sync.WaitGroup{}
	s.script, s.contract = s.script || len(s.command) > 0, contract.V3
	return s, err
}

// run judges one end, and fails if a rule is broken.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return errors.New("want sender or receiver, flags, and a command")
	}
	end := conformance.End(args[0])
	judge := map[conformance.End]func(context.Context, settings, *report, io.Writer, io.Writer) error{
		conformance.Receiver: judgeReceiver, conformance.Sender: judgeSender,
	}[end]
	if judge == nil {
		return fmt.Errorf("want sender or receiver, have %.20q", args[0])
	}
	s, err := parse(end, args[1:], stderr)
	if err != nil {
		return err
	}
	only, err := regexp.Compile(s.only)
	if err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "conformance"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(s.dir) }() //nolint:gosec // It was made above.
	to := newReport(end, only)
	err = judge(ctx, s, to, stdout, stderr)
	s.running.Wait()
	if err != nil {
		return err
	}
	return to.write(stdout, s.junit)
}
