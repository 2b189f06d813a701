// Package check is the command "agent check". It tries each part of the set-up of an agent once,
// and prints a line for each. It changes nothing, neither in the runtime nor in the control plane.
package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/managersfile"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// ErrFailed means that at least one check failed. The output names it.
var ErrFailed = errors.New("checks failed")

const timeout = 40 * time.Second

// Setup is the set-up of an agent.
type Setup struct {
	agent.Options

	To agent.Connection
}

// Run checks the set-up that opts describe and prints the results. It takes at most 40 s. It binds
// no port, so it may run beside an agent with the same settings. It returns [ErrFailed] if a check
// failed.
//
// Link is nil for HTTPS. Without a webhook, informer tries the watches, and returns the problems of
// those that cannot be established. It is nil for a webhook.
func Run(
	ctx context.Context, opts Setup, link Link, informer func(context.Context) []error,
	warnings []string, out io.Writer,
) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	c := &checker{report: &report{out: out}, opts: opts}
	c.reportSettings(nil, warnings)
	c.ok("settings", "contract %s, control plane %s", opts.Contract, opts.To.Address)
	c.checkClientKeys()

	if informer == nil {
		c.checkServingKeys()
		if path := opts.Webhook.ClientCAs; path != "" {
			c.readBundle("WEBHOOK_CLIENT_CA", path)
		}
	}

	c.checkManagers()
	c.checkControlPlane(ctx, link)

	if informer == nil {
		c.checkCanary(ctx)
		c.checkWebhooks(ctx)
	} else {
		c.checkInformer(informer(ctx))
	}

	return c.endReport()
}

// Link connects to the NATS server, and returns a forwarder with its end. The forwarder fails
// unless the operator answers.
type Link func() (over core.Forwarder, stop func(), err error)

// Refuse prints wrong settings, one line each. Warnings do not fail.
func Refuse(mistakes, warnings []string, out io.Writer) error {
	r := &report{out: out}
	r.reportSettings(mistakes, warnings)
	return r.endReport()
}

// checker runs the steps of agent check, one after the other. Later steps use the fields that
// earlier steps have set.
type checker struct {
	*report

	opts   Setup
	pair   *keys.Material // of the client, nil if it is broken
	client keys.Source    // nil unless the files are sound
	known  []core.Manager // that heartbeats are sent to
	// dial goes through the proxy. It is nil without one.
	dial func(ctx context.Context, network, address string) (net.Conn, error)
}

func (c *checker) checkInformer(problems []error) {
	for _, problem := range problems {
		c.fail("informer", problem.Error(), "the right to list and watch, and a resource that is defined",
			"apply the ClusterRole, or correct WATCHERS and INFORMER_API_SERVER")
	}
	if len(problems) == 0 {
		c.ok("informer", "all watches can be established")
	}
}

func (c *checker) checkManagers() {
	c.known = slices.Clone(c.opts.Managers)
	if path := c.opts.ManagersFile; path != "" {
		listed, err := managersfile.Others(c.known, path)
		if err != nil {
			c.fail("MANAGERS_FILE", err.Error(), "one name per line", "correct the ConfigMap")
			return
		}
		c.known = append(c.known, listed...)
	}

	if len(c.known) == 0 {
		c.warn("managers", "none: the agent learns managers from their first review", "MANAGERS or MANAGERS_FILE",
			"without them no start leads to a resync, and any name is accepted")
		return
	}

	c.ok("managers", "%s", strings.Trim(fmt.Sprint(c.known), "[]"))
}

type report struct {
	out            io.Writer
	checks, failed int
	err            error // of the first line that could not be written
}

func (r *report) reportSettings(mistakes, warnings []string) {
	for _, mistake := range mistakes {
		r.fail("settings", strings.TrimSuffix(mistake, ".")+"; correct it, agent --help lists all settings")
	}
	for _, warning := range warnings {
		r.warn("settings", warning)
	}
}

func (r *report) ok(name, format string, args ...any) {
	r.writeLine("ok", name, fmt.Sprintf(format, args...))
}

func (r *report) skip(reason string, names ...string) {
	for _, name := range names {
		r.writeLine("skip", name, reason)
	}
}

// warn prints a result. The expected one and an action may follow.
func (r *report) warn(name string, found ...string) { r.writeLine("warn", name, found...) }

func (r *report) fail(name string, found ...string) {
	r.failed++
	r.writeLine("FAIL", name, found...)
}

func (r *report) failFor(name string, err error, known []advice) {
	a := first(known, err)
	found := err.Error()
	if end := io.EOF.Error(); found == end || strings.HasSuffix(found, ": "+end) {
		found = strings.TrimSuffix(found, end) + "the other end closed the connection without an answer"
	}

	r.fail(name, found, a.want, a.action)
}

type advice struct {
	is           func(error) bool
	want, action string
}

func first(known []advice, err error) advice {
	return known[slices.IndexFunc(known, func(a advice) bool { return a.is(err) })]
}

func isAny(error) bool { return true }

func isA[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

func is(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }

// writeLine writes one line. The text may have line breaks, as errors of other hosts do.
func (r *report) writeLine(result, name string, text ...string) {
	if len(text) > 1 {
		text[1] = "want " + text[1]
	}
	r.checks++
	r.printf("%-4s  %-20s  %s\n", result, name, strings.Join(strings.Fields(strings.Join(text, "; ")), " "))
}

func (r *report) printf(format string, args ...any) {
	_, err := fmt.Fprintf(r.out, format, args...)
	r.err = cmp.Or(r.err, err)
}

func (r *report) endReport() error {
	r.printf("\n%d checks, %d failed\n", r.checks, r.failed)
	if r.failed > 0 {
		return ErrFailed
	}
	return r.err
}
