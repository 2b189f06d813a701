// Package loss makes faults between a runtime and an operator, and compares every write with the
// reconciles of the operator: each last write is reconciled after its commit. The faults are at
// random, and repeatable by a seed.
package loss

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/operator"
)

const (
	sourceAdmission = "admission"
	sourceInformer  = "informer"
	// sourceKept is the webhook of agents that keep their webhook configuration.
	sourceKept    = "kept"
	transportHTTP = "http"
	transportNATS = "nats"
)

var (
	seed     = flag.Uint64("seed", 0, "first seed of TestNothingIsLost")
	seeds    = flag.Uint64("seeds", 2, "how many seeds, one after the other")
	duration = flag.Duration("duration", 10*time.Second, "how long faults are made with each seed")
	settle   = flag.Duration("settle", 100*time.Millisecond, "settle time of the agents")
	// The default is that of a busy machine, where a write may be committed seconds after its
	// admission, and less than the silence after which an agent is taken for gone; make chaos takes
	// the default of the agent.
	resend    = flag.Duration("resend", 3*time.Second, "when the agents send each event once more, 0 for never")
	source    = flag.String("source", sourceAdmission, "source of the agents: admission, informer or kept")
	transport = flag.String("transport", transportHTTP, "transport of the agents: http or nats")
	parallel  = flag.Bool("parallel-seeds", true, "let the seeds run at the same time")
	// More at once make an API server give up on its webhooks where the machine is slow.
	lateWrites  = flag.Int("late", 1, "writes of each kind in TestLateCommitsAreSeen")
	leaderKills = flag.Int("kills", 1, "how often TestKilledLeader kills the leader")
	lease       = flag.Duration("lease", 4*time.Second, "time after which another replica may lead")
)

// way is how a request finds the leader among several replicas of the operator.
type way string

const (
	// route means that a Service leads the gateway to the leader.
	route way = "route"
	// active means that the gateway asks the replicas in turn, and none of them leads.
	active way = "active"
)

// setup selects the parts between a write and an operator.
type setup struct {
	name, source, transport string
	// server is a NATS server: see [lab.NATSServers].
	server string
	// nodes is the number of NATS servers. Default: one.
	nodes int
	// way makes the operator three replicas behind a gateway.
	way way
	// naive replaces the agents by one of the kind that is deployed today, which shows that the suite can fail.
	naive bool
}

// rows are the setups that make test plays with a schedule of their own. The source and the
// transport of an agent do not know each other, so each has a row. make chaos plays them together. Active
// replicas have no leader, and a fleet each.
func rows(t *testing.T) map[setup]Schedule {
	t.Helper()
	// Seed 29 cuts the watch, kills the operator, and deletes objects that no list has shown; seed 172
	// kills the NATS server, and then cuts the operator off.
	const watching, killing, nodes = 29, 172, 3
	server := "debian" // An older version.
	if lab.NATSServers(t)[server] == "" {
		server = "embedded"
	}
	const webhook, direct, nats = sourceAdmission, transportHTTP, transportNATS
	return map[setup]Schedule{
		{name: "informer", source: sourceInformer, transport: direct}:                         NewSchedule(watching, *duration),
		{name: "nats", source: webhook, transport: nats, server: server}:                      NewSchedule(killing, *duration),
		{name: "cluster", source: webhook, transport: nats, server: "embedded", nodes: nodes}: kills(BrokerKilled, nodes, slot, slot/2),
		{name: "active", source: webhook, transport: direct, way: active}:                     kills(OperatorKilled, 1, slot, time.Second),
	}
}

// chosen is the setup of the flags.
func chosen(t *testing.T) setup {
	t.Helper()
	if !slices.Contains([]string{sourceAdmission, sourceInformer, sourceKept}, *source) {
		t.Fatalf("-source %s: want admission, informer or kept", *source)
	}
	if !slices.Contains([]string{transportHTTP, transportNATS}, *transport) {
		t.Fatalf("-transport %s: want http or nats", *transport)
	}
	return setup{name: "seed", source: *source, transport: *transport}
}

// faults replaces those that do not apply.
func (w setup) faults() map[Kind]Kind {
	kinds := make(map[Kind]Kind)
	switch w.source {
	case sourceInformer:
		kinds[WebhookRemoved] = WatchLost
	case sourceKept:
		kinds[WebhookRemoved] = WebhooksChanged
	}
	if w.transport == transportNATS {
		kinds[lab.Unavailable] = BrokerKilled
		kinds[lab.TooFast] = OperatorCut
	}
	return kinds
}

func TestMain(m *testing.M) { os.Exit(operator.Main(func() int { return runTests(m) })) }

// runTests fails when a test failed, or when a goroutine or a process is left.
func runTests(m *testing.M) int {
	// TestLateCommitsAreSeen waits for a minute, and computes little.
	if err := flag.Set("test.parallel", "3"); err != nil {
		panic(err)
	}
	if code := lab.RunTests(m); code != 0 {
		return code
	}
	// toxiproxy waits for ever when a connection ends while it gets a toxic.
	err := goleak.Find(goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"))
	if left := lab.Children(); len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("processes are left: %v", left))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
