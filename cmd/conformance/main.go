// Command runtime-watcher-conformance judges one end of the wire contracts: it acts as the other
// end, tests each rule of docs/reference/contract-v3.md, and prints a table.
//
//	runtime-watcher-conformance receiver [flags] command
//	runtime-watcher-conformance receiver -address=host:port -ca=file -cert=file -key=file
//	runtime-watcher-conformance sender [flags] command
//
// It starts the command as the end under test, with RW_ADDRESS, RW_MANAGER, RW_CA, RW_CERT and
// RW_KEY in the environment. A receiver under test serves at the address, follows the script of
// coretest.ScriptedParts, and prints each delivery of its operator as examples/minimal does. With
// -script=false, a receiver needs neither the script nor the printed deliveries, and the rules that
// depend on either are skipped. A sender under test reads one command in each line of its input:
// "changed <namespace> <name>" is a change of a ConfigMap. It stops at the end of the input. With
// -single, the sender is also judged by contracts v1 and v2. RW_CONTRACT names the contract (v1, v2
// or v3), and RW_OWNER the owner of all objects, as <namespace>/<name>.
//
// The second form judges a receiver that is already running, with the certificate of one of its
// runtimes. It skips the rules that need the script or other runtimes. Trials with an owner need
// -owner, an object of that runtime, because an operator with a verifier refuses any other owner.
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

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/conformance"
	"github.com/runtime-watcher/runtime-watcher/keys"
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

// settings are the flags of one run, and the parts that all its checks share. Only parse and run
// write them.
type settings struct {
	address, junit string
	manager        core.Manager
	only           regexp.Regexp
	script, single bool
	patience       time.Duration
	command        []string
	stderr         io.Writer
	given          *keys.Material // of a runtime, for a receiver that is already running
	// owner is an object of the given runtime, as <namespace>/<name>. An operator with a verifier
	// refuses events of any other owner.
	owner types.NamespacedName

	contract contract.Version // that a sender speaks
	ca       *testpki.CA
	dir      string // for the files of the ends under test
	running  *sync.WaitGroup
}

func parse(end conformance.End, args []string, stderr io.Writer) (settings, error) {
	const patience = 30 * time.Second
	var files keys.Paths
	s := settings{stderr: stderr, contract: contract.V3, running: &sync.WaitGroup{}}
	flags := flag.NewFlagSet(string(end), flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.address, "address", "", "`host:port` of the receiver; default: a free port of 127.0.0.1")
	flags.StringVar(&s.junit, "junit", "", "`file` for the results as JUnit XML")
	flags.StringVar(&files.CA, "ca", "", "`file` with the CA of a receiver that runs already")
	flags.StringVar(&files.Certificate, "cert", "", "`file` with the certificate of a runtime")
	flags.StringVar(&files.Key, "key", "", "`file` with its private key")
	ownerText := flags.String("owner", "",
		"`namespace/name` of an object that owns objects of that runtime; default: trials with an owner are skipped")
	flags.StringVar((*string)(&s.manager), "manager", "my-operator", "`name` of the manager")
	flags.TextVar(&s.only, "only", regexp.MustCompile(""), "`expression`: judge only rules with such an ID")
	flags.BoolVar(&s.script, "script", true, "the receiver follows the script, and prints deliveries")
	flags.BoolVar(&s.single, "single", false, "the sender speaks contracts v1 and v2, too, by RW_CONTRACT and RW_OWNER")
	flags.DurationVar(&s.patience, "patience", patience, "longest `time` of a prompt step")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if err := s.parseOwner(*ownerText); err != nil {
		return s, err
	}

	s.command = flags.Args()
	if len(s.command) > 0 {
		return s, nil
	}
	if end != conformance.Receiver || s.address == "" || files.Certificate == "" {
		return s, errors.New("want a command that starts the end under test, or -address and -cert for a receiver")
	}

	source, err := keys.NewFiles(files, keys.FilesOptions{})
	if err != nil {
		return s, err
	}

	s.script = false
	s.given = source.Status().Material
	return s, nil
}

// parseOwner reads the flag owner.
func (s *settings) parseOwner(text string) error {
	if text == "" {
		return nil
	}

	namespace, name, _ := strings.Cut(text, "/")
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("-owner is %.253q, want <namespace>/<name>", text)
	}

	s.owner = types.NamespacedName{Namespace: namespace, Name: name}
	return nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	judges := map[conformance.End]func(context.Context, settings, *report) error{
		conformance.Receiver: judgeReceiver, conformance.Sender: judgeSender,
	}
	if len(args) == 0 || judges[conformance.End(args[0])] == nil {
		return errors.New("want sender or receiver, flags, and a command")
	}

	end := conformance.End(args[0])
	s, err := parse(end, args[1:], stderr)
	if err != nil {
		return err
	}

	s.ca, err = testpki.NewCA("runtime-watcher-conformance", testpki.Options{})
	if err != nil {
		return err
	}
	s.dir, err = os.MkdirTemp("", "conformance")
	if err != nil {
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

type process struct {
	volume *testpki.Volume
	stdin  io.WriteCloser
	ended  chan struct{} // closed when the process ended
}

func (s *settings) start(ctx context.Context, leaf *testpki.Leaf, line func([]byte)) (*process, error) {
	dir, err := os.MkdirTemp(s.dir, "")
	if err != nil {
		return nil, err
	}

	p := &process{volume: testpki.NewVolume(dir), ended: make(chan struct{})}
	ca, cert, key := p.volume.Paths()
	cmd := exec.CommandContext(ctx, s.command[0], s.command[1:]...) //nolint:gosec // The user names it.
	cmd.Env = append(os.Environ(), "RW_ADDRESS="+s.address, "RW_MANAGER="+string(s.manager), "RW_OWNER="+owner,
		"RW_CONTRACT="+string(s.contract), "RW_CA="+ca, "RW_CERT="+cert, "RW_KEY="+key)
	cmd.Stderr = s.stderr
	stdin, inErr := cmd.StdinPipe()
	stdout, outErr := cmd.StdoutPipe()
	if err := errors.Join(p.volume.Write(testpki.Files(leaf, s.ca)), inErr, outErr, cmd.Start()); err != nil {
		return nil, err
	}

	p.stdin = stdin
	s.running.Go(func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			line(lines.Bytes())
		}

		_ = cmd.Wait()
	})

	return p, nil
}
