package controllerruntime_test

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// domains returns the registered domains of a table, such as one of an inventory service that the
// operator reads beforehand: an event must not wait for a request.
func domains(table map[core.RuntimeID]string) listener.Domains {
	return listener.DomainsFunc(func(_ context.Context, id core.RuntimeID, event *core.WatchEvent) (string, error) {
		if event.Owner != (types.NamespacedName{}) && event.Owner.Name != string(id) {
			return "", listener.Forbidden("owner_mismatch", fmt.Errorf("owner %q is not of runtime %q", event.Owner, id))
		}
		domain, registered := table[id]
		if !registered {
			return "", listener.Forbidden("domain_missing", fmt.Errorf("runtime %q has no registered domain", id))
		}
		return domain, nil
	})
}

// SAN pinning with domains that are not in objects of the control plane.
func Example_domainsFromElsewhere() {
	verifier := listener.SANPinning(domains(map[core.RuntimeID]string{"runtime-1": "one.example.com"}))
	verify := func(id core.RuntimeID, san, owner string) {
		event := core.WatchEvent{Owner: types.NamespacedName{Name: owner}}
		fmt.Println(verifier.Verify(context.Background(), core.Peer{ID: id, DNSNames: []string{san}}, &event))
	}
	verify("runtime-1", "one.example.com", "")
	verify("runtime-1", "two.example.com", "")
	verify("runtime-2", "one.example.com", "")
	verify("runtime-1", "one.example.com", "runtime-2")
	// Output:
	// <nil>
	// sender may not trigger this: no SAN of the certificate equals the registered domain "one.example.com"
	// sender may not trigger this: runtime "runtime-2" has no registered domain
	// sender may not trigger this: owner "/runtime-2" is not of runtime "runtime-1"
}
