package runtimes

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/installations"
)

// neverHeardAfter is how long a runtime that is ready may send nothing. Agents send a heartbeat
// every 30 s.
const neverHeardAfter = 5 * time.Minute

type (
	// Installations contains the states of the agents that a control plane installs in runtimes. It
	// is a copy. Package statuspage serves it, and adapters/prometheus exposes metrics of it.
	Installations = installations.All
	// FailedInstallation is an object that represents a runtime, with the reason of its failure.
	FailedInstallation = installations.Failed
	// InstallationState is a state, such as Ready, with its reason in CamelCase.
	InstallationState = installations.State
)

// Overview contains the states of all runtimes that the controllers of this process have observed.
// The zero value is ready for use as [Options].Overview. It may be used concurrently. The result of
// its method Installations is for metrics and for statuspage.InstallationsHandler.
type Overview struct {
	mu        sync.Mutex
	books     []*book // one for each SetUp
	authority certificates.Status
}

func (o *Overview) newBook() *book {
	o.mu.Lock()
	defer o.mu.Unlock()

	added := newBook()
	o.books = append(o.books, added)
	return added
}

func (o *Overview) noteAuthority(status certificates.Status) {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.authority = status
}

// Installed returns the number of runtimes in which a generation of a Watcher is installed and the
// number of all runtimes. It is for watcher.Options.
func (o *Overview) Installed(watcher types.NamespacedName, generation int64) (installed, all int) {
	o.mu.Lock()
	defer o.mu.Unlock()

	for _, b := range o.books {
		b.eachReported(func(e *entry) {
			all++
			there, isThere := e.watchers[watcher]
			if isThere && there == generation && !e.ready.IsZero() {
				installed++
			}
		})
	}
	return installed, all
}

// Installations returns the current states. With 10,000 runtimes it takes a few milliseconds.
func (o *Overview) Installations() Installations {
	o.mu.Lock()
	defer o.mu.Unlock()

	all := Installations{
		Runtimes:   make(map[InstallationState]int),
		NeverHeard: make(map[core.Manager][]core.RuntimeID),
		Phase:      o.authority.Phase,
		Waiting:    slices.Clone(o.authority.Waiting),
		Overdue:    slices.Clone(o.authority.Overdue),
	}
	for _, b := range o.books {
		b.eachReported(func(e *entry) { b.addTo(&all, e) })
		b.withLock(func() { all.Repairs += b.repairs })
	}

	for _, runtimes := range all.NeverHeard {
		slices.Sort(runtimes)
	}
	slices.SortFunc(all.Failed, func(a, b FailedInstallation) int {
		return cmp.Compare(a.Object.String(), b.Object.String())
	})
	return all
}

// addTo needs the lock of the book.
func (b *book) addTo(all *Installations, e *entry) {
	all.Runtimes[e.state]++
	if e.state.State == installation.Failed {
		all.Failed = append(all.Failed, FailedInstallation{Object: e.object, Runtime: e.id, Reason: e.state.Reason})
	}
	if e.ready.IsZero() {
		return
	}

	for _, manager := range e.managers {
		silent := all.NeverHeard[manager] // Each manager has an entry.
		if b.isSilent(e, manager) {
			silent = append(silent, e.id)
		}
		all.NeverHeard[manager] = silent
	}
}

// isSilent reports whether no agent of a runtime that is ready has ever sent a heartbeat.
func (b *book) isSilent(e *entry, manager core.Manager) bool {
	if b.status == nil || time.Since(e.ready) <= neverHeardAfter {
		return false
	}
	return b.status(e.id, manager).LastSeen.IsZero()
}
