// Package conformance runs cmd/conformance against our own ends and against others, with and
// without faults.
package conformance

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const (
	// endVariable makes the test binary an end under test, and faultVariable seeds a fault into it.
	endVariable, faultVariable = "RW_END", "RW_FAULT"
)

func TestMain(m *testing.M) {
	ends := map[string]func(context.Context, string) error{"receiver": receive, "sender": send}
	end := ends[os.Getenv(endVariable)]
	if end == nil {
		// Tests wait, and compute little.
		_ = flag.Set("test.parallel", "16") // It is there.
		os.Exit(m.Run())
	}
	if err := end(context.Background(), os.Getenv(faultVariable)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// results are the rules of a run: whether each is kept.
type results map[string]bool

// judge runs the program, and returns what its report says.
func judge(t *testing.T, program, fault string, args ...string) results {
	t.Helper()
	junit := filepath.Join(t.TempDir(), "junit.xml")
	end := args[0]
	cmd := exec.CommandContext(t.Context(), program, append([]string{end, "-junit", junit}, args[1:]...)...)
	cmd.Env = append(os.Environ(), endVariable+"="+end, faultVariable+"="+fault)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	table, err := cmd.Output()
	t.Logf("%s %s\n%s", end, fault, table)
	var report struct {
		Failures int `xml:"failures,attr"`
		Skipped  int `xml:"skipped,attr"`
		Cases    []struct {
			Name    string    `xml:"name,attr"`
			Failure *struct{} `xml:"failure"`
		} `xml:"testcase"`
	}
	text, readErr := os.ReadFile(junit)
	if readErr != nil || xml.Unmarshal(text, &report) != nil {
		t.Fatalf("no report: %v, %v\n%s", err, readErr, &stderr)
	}
	var exit *exec.ExitError
	whole := end == "receiver" || slices.Contains(args, "-single")
	if failed := errors.As(err, &exit) && exit.ExitCode() == 1; failed != (report.Failures > 0) || report.Skipped > 0 && whole {
		t.Errorf("%d rules are broken and %d skipped, and the program ended with %v\n%s",
			report.Failures, report.Skipped, err, &stderr)
	}
	kept := results{}
	for _, c := range report.Cases {
		rule, _, _ := strings.Cut(c.Name, ":")
		kept[rule] = c.Failure == nil
	}
	return kept
}

func wantKept(t *testing.T, found results) {
	t.Helper()
	for rule, kept := range found {
		if !kept {
			t.Errorf("%s is broken", rule)
		}
	}
	if len(found) == 0 {
		t.Error("no rule was judged")
	}
}

// patience is for a busy machine. Only a broken rule takes so long.
const patience = "-patience=5m"

// wantFound holds that each of these rules finds a fault, and that another one is kept. Each waits on its own.
func wantFound(t *testing.T, program, end, fault, control string, broken []string) {
	t.Helper()
	t.Run(fault, func(t *testing.T) {
		t.Parallel()
		wantKept(t, judge(t, program, fault, end, patience, "-only=^"+control+"$", os.Args[0]))
		for _, rule := range broken {
			t.Run(rule, func(t *testing.T) {
				t.Parallel()
				found := judge(t, program, fault, end, "-patience=10s", "-single", "-only=^"+rule+"$", os.Args[0])
				if kept, judged := found[rule]; kept || !judged {
					t.Errorf("%s does not find it. It was judged: %t", rule, judged)
				}
			})
		}
	})
}

// The sender in Python knows nothing of our code.
func TestPython(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		lab.Missing(t, "needs Python (Debian: python3): %v", err)
	}
	sender := filepath.Join(test.Root(), "examples", "python-sender", "sender.py")
	wantKept(t, judge(t, lab.Build(t, "cmd/conformance"), "", "sender", patience, python, sender))
	t.Run("with resends", func(t *testing.T) {
		t.Parallel()
		rules := "-only=^(last|silent-end|sequence|acknowledged|merge|heartbeat)$"
		command := []string{"env", "RW_RESENDS=3,35", python, sender}
		found := judge(t, lab.Build(t, "cmd/conformance"), "", append([]string{"sender", patience, rules}, command...)...)
		wantKept(t, found)
	})
	const most = 330
	if lines := bytes.Count(test.Read(t, "examples/python-sender/sender.py"), []byte("\n")); lines > most {
		t.Errorf("the sender has %d lines, want at most %d", lines, most)
	}
}

func TestReceiver(t *testing.T) {
	t.Parallel()
	binary := lab.Build(t, "cmd/conformance")
	wantKept(t, judge(t, binary, "", "receiver", patience, os.Args[0]))
	for fault, f := range receiverFaults() {
		wantFound(t, binary, "receiver", fault, "accepted", f.found)
	}
}

// TestRunningReceiver judges an operator that runs already. Its verifier refuses the objects of other
// owners, as SAN pinning does. Without -owner, no trial names an owner. With a wrong -owner, the
// judge finds that the operator refuses it.
func TestRunningReceiver(t *testing.T) {
	t.Parallel()
	const runtime = "runtime-1"
	known := types.NamespacedName{Namespace: "fleet", Name: "owner-of-runtime-1"}
	ca := lab.Must(testpki.NewCA("ca", testpki.Options{}))
	server := testpki.NewVolume(t.TempDir())
	client := testpki.NewVolume(t.TempDir())
	lab.NoError(t, server.Write(testpki.Files(lab.Must(ca.Server("operator", testpki.Options{})), ca)))
	lab.NoError(t, client.Write(testpki.Files(lab.Must(ca.Client(runtime, testpki.Options{})), ca)))
	caFile, cert, key := server.Paths()
	files := lab.Must(keys.NewFiles(keys.Paths{CA: caFile, Certificate: cert, Key: key}, keys.FilesOptions{}))
	verifier := core.VerifierFunc(func(_ context.Context, _ core.Peer, event *core.WatchEvent) error {
		if event.Owner != (types.NamespacedName{}) && event.Owner != known {
			return core.ErrForbidden
		}
		return nil
	})
	bound := lab.Must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	handlers := map[core.Manager]core.Handler{"my-operator": core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })}
	l := lab.Must(listener.New(listener.FromTLS(keys.Roots(files), listener.PeerOptions{}), verifier, handlers,
		listener.Options{Listener: bound, TLS: keys.ServerTLSConfig(files), Fleet: lab.Must(fleet.New(fleet.Options{}))}))
	lab.Run(t, "listener", l.Start)

	caFile, cert, key = client.Paths()
	form := []string{
		"receiver", "-address=" + bound.Addr().String(), "-ca=" + caFile, "-cert=" + cert, "-key=" + key, patience,
		"-only=^(media-type|resync|single)$",
	}
	binary := lab.Build(t, "cmd/conformance")
	wantKept(t, judge(t, binary, "", form...))
	wantKept(t, judge(t, binary, "", append(form, "-owner="+known.String())...))
	if found := judge(t, binary, "", append(form, "-owner=fleet/another")...); found["resync"] || found["single"] {
		t.Error("an operator that refuses the owner is judged to take it: the trials with an owner do not run")
	}
}

// senderFault is one fault in our own sender, and the rules that find it.
type senderFault struct {
	forward func(ctx context.Context, next core.Forwarder, manager core.Manager, batch core.Batch) error
	found   []string
}

func senderFaults() map[string]senderFault {
	var last atomic.Uint64
	return map[string]senderFault{
		"forgets refused events": {func(ctx context.Context, next core.Forwarder, manager core.Manager, batch core.Batch) error {
			err := next.Forward(ctx, manager, batch)
			if _, partial := errors.AsType[core.EventErrors](err); partial {
				return nil
			}
			return err
		}, []string{"partial"}},
		"hides Retry-After": {func(ctx context.Context, next core.Forwarder, manager core.Manager, batch core.Batch) error {
			if err := next.Forward(ctx, manager, batch); err != nil {
				return errors.New(err.Error())
			}
			return nil
		}, []string{"retry-after", "refused-sender", "dropped", "single"}},
		"numbers retries anew": {func(ctx context.Context, next core.Forwarder, manager core.Manager, batch core.Batch) error {
			batch.Events = slices.Clone(batch.Events)
			for i := range batch.Events {
				batch.Events[i].Sequence = last.Add(1)
			}
			return next.Forward(ctx, manager, batch)
		}, []string{"retry", "kept"}},
		"keeps its certificate": {nil, []string{"rotation"}},
		"sends no heartbeats": {func(ctx context.Context, next core.Forwarder, manager core.Manager, batch core.Batch) error {
			batch.Heartbeat = nil
			return next.Forward(ctx, manager, batch)
		}, []string{"heartbeat", "last"}},
	}
}

func TestSender(t *testing.T) {
	t.Parallel()
	binary := lab.Build(t, "cmd/conformance")
	t.Run("sound", func(t *testing.T) {
		t.Parallel()
		wantKept(t, judge(t, binary, "", "sender", patience, "-single", os.Args[0]))
	})
	t.Run("with resends", func(t *testing.T) {
		t.Parallel()
		wantKept(t, judge(t, binary, resends, "sender", patience, "-only=^(last|silent-end|sequence|heartbeat)$", os.Args[0]))
	})
	for fault, f := range senderFaults() {
		wantFound(t, binary, "sender", fault, "content", f.found)
	}
}

// resends is no fault: our own sender with the resends of its default.
const resends = "sends again"

// send is our own sender: an outbox and the forwarder over HTTP.
func send(ctx context.Context, fault string) error {
	retry := func() {}
	files := lab.Must(keys.NewFiles(paths(), keys.FilesOptions{
		Poll: 100 * time.Millisecond, Hooks: keys.FilesHooks{Reloaded: func(keys.Generation) { retry() }},
	}))
	version := lab.Must(contract.ParseVersion(os.Getenv("RW_CONTRACT")))
	forwarder := lab.Must(httpmtls.NewForwarder(files, os.Getenv("RW_ADDRESS"), version, httpmtls.Options{}))
	var to core.Forwarder = forwarder
	if fault == "keeps its certificate" {
		files = lab.Must(keys.NewFiles(paths(), keys.FilesOptions{Poll: time.Hour}))
		forwarder = lab.Must(httpmtls.NewForwarder(files, os.Getenv("RW_ADDRESS"), version, httpmtls.Options{}))
		to = forwarder
	} else if seeded, ok := senderFaults()[fault]; ok {
		to = core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
			return seeded.forward(ctx, forwarder, manager, batch)
		})
	}
	manager := core.Manager(os.Getenv("RW_MANAGER"))
	opts := outbox.Options{
		Settle: -1, Resend: []time.Duration{}, ResendResync: -1, ResyncFirst: true, Epoch: rand.Text(), MaxBatch: version.MaxEvents(),
		Managers: []core.Manager{manager}, HeartbeatInterval: time.Second,
	}
	if fault == resends {
		opts.Resend = nil
		opts.ResendResync = 0
	}
	o := lab.Must(outbox.New(to, opts))
	retry = o.Retry // As package agent does: a new certificate ends the waits after refusals.
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() { _ = files.Start(ctx) }()
	defer func() { _ = forwarder.Close() }()
	go func() {
		defer stop()
		acceptLines(o, manager)
	}()
	return o.Start(ctx)
}

// acceptLines reads commands until the end of the input.
func acceptLines(o *outbox.Outbox, manager core.Manager) {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var object types.NamespacedName
		if _, err := fmt.Sscanf(lines.Text(), "changed %s %s", &object.Namespace, &object.Name); err != nil {
			panic(err)
		}
		namespace, name, _ := strings.Cut(os.Getenv("RW_OWNER"), "/")
		o.Accept(manager, core.WatchEvent{
			Owner:   types.NamespacedName{Namespace: namespace, Name: name},
			Watched: object, WatchedGVK: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
		})
	}
}

// receiverFault is one fault in our own receiver, and the rules that find it.
type receiverFault struct {
	seed  func(*coretest.ReceiverParts, *listener.Options)
	found []string
}

func receiverFaults() map[string]receiverFault {
	type (
		parts   = coretest.ReceiverParts
		options = listener.Options
	)
	return map[string]receiverFault{
		"sees no gaps":     {func(_ *parts, o *options) { o.Fleet = nil }, []string{"gap", "new-epoch"}},
		"limits nobody":    {func(_ *parts, o *options) { o.RuntimeRate, o.RuntimeBurst = 1e6, 1e6 }, []string{"too-fast", "share"}},
		"verifies nothing": {func(p *parts, _ *options) { p.Verifier = listener.InsecureAllowAll() }, []string{"forbidden-sender", "not-ready"}},
		"acknowledges failures": {
			func(p *parts, _ *options) { p.Handlers["my-operator"] = forgiving{p.Handlers["my-operator"]} }, []string{"partial"},
		},
	}
}

// forgiving returns nil for events that it loses.
type forgiving struct{ core.Handler }

func (f forgiving) Handle(ctx context.Context, d core.Delivery) error {
	_ = f.Handler.Handle(ctx, d)
	return nil
}

// receive is our own receiver: a listener with the script of the suite.
func receive(ctx context.Context, fault string) error {
	parts := lab.Must(coretest.ScriptedParts(printer()))
	files := lab.Must(keys.NewFiles(paths(), keys.FilesOptions{}))
	opts := listener.Options{Addr: os.Getenv("RW_ADDRESS"), TLS: keys.ServerTLSConfig(files), Fleet: parts.Fleet}
	if seeded, ok := receiverFaults()[fault]; ok {
		seeded.seed(&parts, &opts)
	}
	peers := listener.FromTLS(keys.Roots(files), listener.PeerOptions{})
	return lab.Must(listener.New(peers, parts.Verifier, parts.Handlers, opts)).Start(ctx)
}

func paths() keys.Paths {
	return keys.Paths{CA: os.Getenv("RW_CA"), Certificate: os.Getenv("RW_CERT"), Key: os.Getenv("RW_KEY")}
}

// printer prints deliveries as examples/minimal does.
func printer() core.Handler {
	var mu sync.Mutex
	return core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		return json.NewEncoder(os.Stdout).Encode(map[string]any{
			"runtime": d.Runtime, "manager": d.Manager, "event": d.Event.KindWord(),
			"namespace": d.Event.Watched.Namespace, "name": d.Event.Watched.Name,
		})
	})
}
