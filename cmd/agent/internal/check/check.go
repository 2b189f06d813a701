// Package check is the command "agent check". It tries each part of the set-up of an agent once,
// and prints a line for each. It changes nothing, neither in the runtime nor in the control plane.
package check

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/cmd/agent/runtimeagent"
)

// ErrFailed means that at least one check failed. The output names it.
var ErrFailed = errors.New("checks failed")

// timeout bounds all checks together.
const timeout = 40 * time.Second

// Run checks the set-up that opts describe and prints the results. It takes at most 40 s. It binds
// no port, so it may run beside an agent with the same settings. It returns [ErrFailed] if a check
// failed.
func Run(ctx context.Context, opts runtimeagent.Options, warnings []string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c := &checker{report: &report{out: out}, opts: opts}
	c.settings(warnings)
	c.clientKeys()
	c.servingKeys()
	c.callers()
	c.managers()
	c.controlPlane(ctx)
	c.canary(ctx)
	return c.end()
}

// Refuse prints wrong settings, one line each. One that begins with "warning: " does not fail.
func Refuse(mistakes []string, out io.Writer) error {
	r := &report{out: out}
	for _, mistake := range mistakes {
		if warning, ok := strings.CutPrefix(mistake, "warning: "); ok {
			r.warn("settings", finding{found: warning})
			continue
		}
		r.fail("settings", finding{
			found: strings.TrimSuffix(mistake, "."), action: "correct it, agent --help lists all settings",
		})
	}
	return r.end()
}

// checker has the results of former checks that later ones need.
type checker struct {
	*report

	opts   runtimeagent.Options
	client clientKeys
	known  managers
}

func (c *checker) settings(warnings []string) {
	for _, warning := range warnings {
		c.warn("settings", finding{found: warning})
	}
	c.ok("settings", "contract %s, control plane %s", c.opts.Contract, c.opts.ControlPlane.Address)
}
