package certificates

import (
	"testing"
	"time"
)

// An imported CA is in the bundle of all peers, so it signs although nothing of this set is
// published. Another CA beside an existing bundle must not.
func TestImportedCASignsAtOnce(t *testing.T) {
	now := time.Unix(1e9, 0)
	adopted := func(known bool) view {
		return view{
			now:       now,
			published: published{present: true, bundle: []string{"existing"}, since: now},
			authorities: []authority{{
				generation: 1, fingerprint: "existing", notAfter: now.Add(caLife), life: caLife, known: known,
			}},
		}
	}
	v := adopted(true)
	if s := plan(v, testLimits); s.action != actionSignClients || s.generation != 1 {
		t.Errorf("step %s of generation %d, want the imported CA to sign for runtimes", s.action, s.generation)
	}
	v.clientSigner = 1
	if s := plan(v, testLimits); s.action != actionSignServer {
		t.Errorf("step %s, want the imported CA to sign for the server", s.action)
	}
	v.serverSigner, v.server = 1, leaf{present: true, signer: "existing", notAfter: now.Add(day)}
	if s := plan(v, testLimits); s.action != actionPublish {
		t.Errorf("step %s, want the server certificate to be published", s.action)
	}
	if s := plan(adopted(false), testLimits); s.action != actionNone || s.phase != phaseBootstrap {
		t.Errorf("step %s in %s of a CA that no peer knows, want it to wait", s.action, s.phase)
	}
}
