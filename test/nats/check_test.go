package nats_test

import (
	"maps"
	"regexp"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// TestCheck runs "agent check" with TRANSPORT=nats. The runtime may publish to a manager without a
// stream, too.
func TestCheck(t *testing.T) {
	const absent = "absent"
	onEach(t, func(t *testing.T, _, p string) {
		t.Helper()
		pki := lab.NewPKI(t)
		b := lab.StartBroker(t, lab.BrokerOptions{Program: p, CA: pki.CA},
			lab.OperatorUser(manager), lab.RuntimeUser(attacker, manager, absent))
		watched := lab.Must(fleet.New(fleet.Options{}))
		stop := consume(t, b.Operator(manager), new(lab.Arrivals), natsjetstream.Options{Fleet: watched})
		sound := map[string]string{
			"TRANSPORT": "nats", "KCP_ADDR": b.Nodes[0].Addr, "MANAGERS": string(manager), "FORWARD_TIMEOUT": "10s",
		}
		maps.Copy(sound, lab.VolumeEnv(pki.RuntimeVolume(string(attacker), lab.RuntimeDomain(attacker))))
		check := func(name string, change map[string]string, code int, line string) {
			t.Helper()
			env := maps.Clone(sound)
			maps.Copy(env, change)
			out, got := lab.Check(t, env)
			if got != code || !regexp.MustCompile(`^`+line).MatchString(lab.Telling(out, code)) {
				t.Errorf("%s: exit code %d, want %d and a match of %s:\n%s", name, got, code, line, out)
			}
		}
		lab.Eventually(t, lab.Patience, "a check of a sound set-up is good", func() bool {
			_, code := lab.Check(t, sound)
			return code == 0
		})
		check("none", nil, 0, `ok    heartbeat +manager my-operator acknowledges`)
		other := lab.VolumeEnv(lab.NewPKI(t).RuntimeVolume(string(attacker), lab.RuntimeDomain(attacker)))
		check("wrong CA", map[string]string{"CA_CERT": other["CA_CERT"]}, 1, `FAIL  TLS .*unknown authority.*CA_CERT`)
		other["CA_CERT"] = sound["CA_CERT"]
		check("untrusted client", other, 1, `FAIL  TLS .*want a control plane that accepts TLS_CERT`)
		check("wrong name", map[string]string{"KCP_SERVER_NAME": "other"}, 1, `FAIL  TLS .*set KCP_SERVER_NAME`)
		check("closed port", map[string]string{"KCP_ADDR": lab.Address(lab.FreePort(t))}, 1, `FAIL  connection .*refused`)
		check("no user", lab.VolumeEnv(pki.RuntimeVolume(string(victim), lab.RuntimeDomain(victim))), 1,
			`FAIL  TLS .*Authorization Violation.*want a user with a SAN of TLS_CERT`)
		check("no right", map[string]string{"MANAGERS": "nobody"}, 1, `FAIL  heartbeat .*forbidden.*add this manager to the user`)
		check("no stream", map[string]string{"MANAGERS": absent}, 1, `FAIL  heartbeat .*unknown_manager.*start the operator`)
		lab.Same(t, "state after checks without an agent", fleet.Unknown, watched.Get(attacker, manager).State)
		stop()
		check("no operator", map[string]string{"FORWARD_TIMEOUT": "2s"}, 1, `FAIL  heartbeat .*timeout.*load of the operator`)
	})
}
