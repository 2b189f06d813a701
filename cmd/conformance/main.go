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
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
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

// material issues certificates, or has one that was given.
type material struct {
	ca    *testpki.CA
	roots *x509.CertPool
	given *tls.Certificate
}

func newMaterial(s settings) (m material, err error) {
	if len(s.command) > 0 || s.files.Certificate == "" {
		m.ca, err = testpki.NewCA("runtime-watcher-conformance", testpki.Options{})
		if err == nil {
			m.roots = m.ca.Pool()
		}
		return m, err
	}
	pair, err := tls.LoadX509KeyPair(s.files.Certificate, s.files.Key)
	if err != nil {
		return m, err
	}
	pem, err := os.ReadFile(s.files.CA)
	m.given, m.roots = &pair, x509.NewCertPool()
	if !m.roots.AppendCertsFromPEM(pem) {
		err = errors.Join(err, fmt.Errorf("%s: no certificate", s.files.CA))
	}
	return m, err
}

// runtime returns the certificate of a runtime, if there is one.
func (m material) runtime(id core.RuntimeID) (tls.Certificate, error) {
	if m.given == nil {
		leaf, err := m.ca.Client(string(id), testpki.Options{})
		if err != nil {
			return tls.Certificate{}, err
		}
		return leaf.TLS, nil
	}
	if cn := m.given.Leaf.Subject.CommonName; cn != string(id) {
		return tls.Certificate{}, fmt.Errorf("needs a certificate of %s, and has that of %s", id, cn)
	}
	return *m.given, nil
}

// endpoint has the settings of an end under test: an address, and files with key material.
type endpoint struct {
	settings

	volume *testpki.Volume
}

func (m material) newEndpoint(s settings, leaf *testpki.Leaf) (*endpoint, error) {
	dir, err := os.MkdirTemp(s.dir, "")
	if err != nil {
		return nil, err
	}
	e := &endpoint{s, testpki.NewVolume(dir)}
	return e, e.volume.Write(testpki.Files(leaf, m.ca))
}

func (e *endpoint) environment() []string {
	ca, cert, key := e.volume.Paths()
	return []string{
		"RW_ADDRESS=" + e.address, "RW_MANAGER=" + string(e.manager), "RW_CA=" + ca, "RW_CERT=" + cert, "RW_KEY=" + key,
		"RW_CONTRACT=" + string(e.contract), "RW_OWNER=" + owner,
	}
}

type process struct {
	stdin io.WriteCloser
	ended chan struct{} // closed when it ended
}

// start runs the command until ctx ends. line gets each line of the output.
func (e *endpoint) start(ctx context.Context, stderr io.Writer, line func([]byte)) (*process, error) {
	cmd := exec.CommandContext(ctx, e.command[0], e.command[1:]...) //nolint:gosec // The user names it.
	cmd.Env, cmd.Stderr = append(os.Environ(), e.environment()...), stderr
	stdin, inErr := cmd.StdinPipe()
	stdout, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		return nil, err
	}
	p := &process{stdin, make(chan struct{})}
	e.running.Go(func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			line(lines.Bytes())
		}
		_ = cmd.Wait()
	})
	return p, nil
}

func await(ctx context.Context, address string, ended <-chan struct{}) error {
	const pause = 50 * time.Millisecond
	for {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no receiver at %s: %w", address, err)
		case <-ended:
			return errors.New("the receiver ended before it served")
		case <-time.After(pause):
		}
	}
}

// record adds a delivery that a receiver printed.
func record(operator *coretest.Recorder, line []byte) {
	var d struct{ Event, Runtime, Manager, Namespace, Name string }
	if json.Unmarshal(line, &d) != nil || d.Event == "" { //nolint:musttag // Names match in lower case, too.
		return
	}
	_ = operator.Handle(context.Background(), core.Delivery{
		Runtime: core.RuntimeID(d.Runtime), Manager: core.Manager(d.Manager),
		Event: core.WatchEvent{
			Resync: d.Event == "resync", Watched: types.NamespacedName{Namespace: d.Namespace, Name: d.Name},
		},
	})
}
