package gateway_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// TestServerCertificateIsSwitchedOnConfirmation rotates the CA of a control plane and its runtimes, as an operator would who asks the fleet: the server
// certificate changes when every runtime has said that it trusts the new CA. Until then, exactly those that have not are named.
func TestServerCertificateIsSwitchedOnConfirmation(t *testing.T) {
	if testing.Short() {
		t.Skip("runs three agents")
	}

	last, next := must(testpki.NewCA("last", testpki.Options{})), must(testpki.NewCA("next", testpki.Options{}))
	plane := startControlPlane(t, false, true, last, last)
	agents := make([]*runtimeAgent, 3)

	for i := range agents {
		agents[i] = startAgent(t, fmt.Sprint("runtime-", i+1), true, plane.addr, nil, last, last)
	}

	expect := func(what string, want ...core.RuntimeID) {
		t.Helper()

		var have []core.RuntimeID

		eventually(t, fmt.Sprintf("%s: %v still use the old CA", what, want), func() bool {
			have = plane.fleet.WithoutCA(fingerprint(next.Certificate().Raw))
			slices.Sort(have)

			return cmp.Equal(want, have)
		})

		if unaware := plane.fleet.WithoutCA(fingerprint(last.Certificate().Raw)); len(unaware) > 0 {
			t.Errorf("%s: %v are said not to have the CA that they all have", what, unaware)
		}
	}

	expect("at first", "runtime-1", "runtime-2", "runtime-3")

	// The listener may believe the new one at once. What it shows, it may not change yet.
	plane.write(last, last, next)
	plane.awaitWritten()

	agents[0].secret.write(last, last, next)
	expect("one is told", "runtime-2", "runtime-3")

	// What is broken on disk is not in use, although the bundle beside it is the new one.
	broken := agents[1].secret
	broken.spoil(breakages[0].spoil, last, last, next)
	eventually(t, "the runtime with broken files says so", func() bool {
		beat, heard := plane.heartbeat("runtime-2")

		return heard && beat.KeyMaterialError != ""
	})

	agents[2].secret.write(next, last, next)
	expect("one of two others has broken files", "runtime-2")

	broken.write(last, last, next)
	expect("all are told")

	// Now it can be switched: the old CA could even be gone from the server's own chain.
	plane.write(next, last, next)
	plane.awaitWritten()

	for _, agent := range agents {
		before := heartbeats(plane, agent.id)

		eventually(t, string(agent.id)+" is heard after the switch", func() bool { return heartbeats(plane, agent.id) > before+2 })

		if n := agent.Metric("runtime_watcher_agent_forward_connections_total", `result="tls_verify"`); n > 0 {
			t.Errorf("%s could not verify the control plane %v times", agent.id, n)
		}
	}
}

// heartbeats is the number of the last one.
func heartbeats(plane *controlPlane, runtime core.RuntimeID) uint64 {
	beat, _ := plane.heartbeat(runtime)

	return beat.Number
}
