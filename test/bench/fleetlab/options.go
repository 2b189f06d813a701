package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// options are the settings of a run.
type options struct {
	sizes     []int
	scenarios []scenario
	variants  []variant
	// out is the directory for the report, the plots and the logs.
	out string
	// profile makes the operator write heap profiles into out.
	profile bool
	shape
}

// shape has the durations and rates of a run.
type shape struct {
	// heartbeat is the interval of heartbeats.
	heartbeat time.Duration
	// changeEvery is the mean time between two changes of one runtime.
	changeEvery time.Duration
	// hold is the time for which a scenario lasts, or its fault.
	hold time.Duration
	// storm is the time in which each runtime has stormEvents changes.
	storm       time.Duration
	stormEvents int
	// afterStorm is the time to wait for the resends of a storm.
	afterStorm time.Duration
	// poll is the time between two looks of the operator at its key files.
	poll time.Duration
	// lease is the duration of the leader's lease.
	lease time.Duration
	// every is the time between two reports of an operator.
	every time.Duration
	// patience bounds each wait for a condition.
	patience time.Duration
}

func defaultShape() shape {
	return shape{
		heartbeat: outbox.Defaults().HeartbeatInterval, changeEvery: time.Minute, hold: time.Minute,
		storm: 10 * time.Second, stormEvents: 100, afterStorm: outbox.Defaults().ResendResync,
		poll: 5 * time.Second, lease: 8 * time.Second,
		every: 500 * time.Millisecond, patience: 5 * time.Minute,
	}
}

// variant is a way to set up both ends.
type variant struct {
	Name     string            `json:"name"`
	Protocol httpmtls.Protocol `json:"protocol"`
	// GOGC is the environment variable of an operator.
	GOGC string `json:"gogc"`
	// Tickets means that the keys of session tickets outlive a process.
	Tickets bool `json:"tickets"`
	// FullHandshakes means that the operator offers no session tickets.
	FullHandshakes bool `json:"fullHandshakes"`
	// X25519 means that the operator offers no other curve.
	X25519 bool `json:"x25519"`
	// Lossy means that the operator does not reconcile every seventh runtime.
	Lossy bool `json:"lossy"`
}

// variants returns all variants. The first has the defaults of agent and operator.
func variants() []variant {
	return []variant{
		{Name: "default"},
		{Name: "http1", Protocol: httpmtls.HTTP1},
		{Name: "http2", Protocol: httpmtls.HTTP2},
		{Name: "x25519", X25519: true},
		{Name: "tickets", Tickets: true},
		{Name: "no-tickets", FullHandshakes: true},
		{Name: "gogc50", GOGC: "50"},
	}
}

var errSize = errors.New("want positive numbers of runtimes, separated by commas")

func parse(args []string, stderr io.Writer) (options, error) {
	opts := options{
		sizes: []int{1000}, scenarios: scenarios(), variants: variants()[:1],
		shape: defaultShape(),
	}
	flags := flag.NewFlagSet("fleetlab", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Func("n", "`numbers` of runtimes (default 1000)", opts.setSizes)
	flags.Func("scenario", "`names` of scenarios (default all)", func(text string) (err error) {
		opts.scenarios, err = choose(text, scenarios(), func(s scenario) string { return s.name })
		return err
	})
	flags.Func("variant", "`names` of variants of both ends (default default)", func(text string) (err error) {
		opts.variants, err = choose(text, variants(), func(v variant) string { return v.Name })
		return err
	})
	flags.StringVar(&opts.out, "out", "bin/fleetlab", "`directory` of report, plots and logs")
	flags.BoolVar(&opts.profile, "profile", false, "write heap profiles of the operator into the directory")
	flags.DurationVar(&opts.heartbeat, "heartbeat", opts.heartbeat, "interval of heartbeats")
	flags.DurationVar(&opts.changeEvery, "change-every", opts.changeEvery, "mean time between two changes of a runtime")
	flags.DurationVar(&opts.hold, "hold", opts.hold, "duration of a scenario, or of its fault")
	flags.DurationVar(&opts.lease, "lease", opts.lease, "duration of the lease of a leader")
	return opts, flags.Parse(args)
}

func (o *options) setSizes(text string) error {
	o.sizes = nil
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n <= 0 {
			return errSize
		}
		o.sizes = append(o.sizes, n)
	}
	return nil
}

// choose returns the named elements of all, in the order of the names.
func choose[T any](names string, all []T, name func(T) string) (chosen []T, err error) {
	if names == "all" {
		return all, nil
	}
	for wanted := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(one T) bool { return name(one) == wanted })
		if i < 0 {
			return nil, fmt.Errorf("unknown name %q, want some of %s", wanted, list(all, name))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

func list[T any](all []T, name func(T) string) string {
	names := make([]string, len(all))
	for i, one := range all {
		names[i] = name(one)
	}
	return strings.Join(names, ", ")
}
