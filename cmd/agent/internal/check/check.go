// Package check is the command "agent check". It tries each part of the set-up of an agent once,
// and prints a line for each. It changes nothing, neither in the runtime nor in the control plane.
package check

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/internal/shared/managersfile"
)

// Run checks the set-up that opts describe and prints the results. It takes at most 40 s. It binds
// no port, so it may run in parallel with an agent with the same settings. It returns [ErrFailed]
// if a check failed.
//
// Link is nil for HTTPS. Without a webhook, informer tries the watches, and returns the problems of
// the watches that cannot be established. informer is nil for a webhook.
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

// Refuse prints wrong settings, one line each. Warnings do not fail.
func Refuse(mistakes, warnings []string, out io.Writer) error {
	r := &report{out: out}
	r.reportSettings(mistakes, warnings)
	return r.endReport()
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
