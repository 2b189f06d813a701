// Command runtime-watcher-conformance judges one end of the wire contracts: it plays the other end,
// tries each rule of docs/reference/contract-v3.md, and prints a table.
//
//	runtime-watcher-conformance receiver [flags] command
//	runtime-watcher-conformance sender [flags] command
//
// The command is the end under test. It is started with RW_ADDRESS, RW_MANAGER, RW_CA, RW_CERT and
// RW_KEY in the environment. A receiver serves at the address, follows the script of
// coretest.ScriptedParts, and prints each delivery of its operator as examples/minimal does. A
// sender reads one command in each line of its input: "changed <namespace> <name>" is a change of a
// ConfigMap. It stops at the end of the input. With -single, it is also judged by contracts v1 and
// v2. RW_CONTRACT names the contract (v1, v2 or v3), and RW_OWNER the owner of all objects, as
// <namespace>/<name>.
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

// settings are the values of the flags, and those of the end under test.
type settings struct {
	manager  core.Manager
	only     string
	single   bool
	patience time.Duration
	command  []string

	dir      string // for the files of the ends
	address  string
	contract contract.Version // that a sender speaks
	// running are the processes that were started. They end with the check or the run.
	running *sync.WaitGroup
}

func parse(end conformance.End, args []string, stderr io.Writer) (settings, error) {
	const patience = 30 * time.Second
	s := settings{running: &sync.WaitGroup{}, contract: contract.V3}
	flags := flag.NewFlagSet(string(end), flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar((*string)(&s.manager), "manager", "my-operator", "`name` of the manager")
	flags.StringVar(&s.only, "only", "", "`expression`: judge only rules with such an ID")
	flags.BoolVar(&s.single, "single", false, "the sender speaks contracts v1 and v2, too, by RW_CONTRACT and RW_OWNER")
	flags.DurationVar(&s.patience, "patience", patience, "longest `time` of a prompt step")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if s.command = flags.Args(); len(s.command) == 0 {
		return s, errors.New("want a command that starts the end under test")
	}
	return s, nil
}

// run judges one end, and fails if a rule is broken.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return errors.New("want sender or receiver, flags, and a command")
	}
	end := conformance.End(args[0])
	judge := map[conformance.End]func(context.Context, settings, *report, io.Writer) error{
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
	err = judge(ctx, s, to, stderr)
	s.running.Wait()
	if err != nil {
		return err
	}
	return to.write(stdout)
}
