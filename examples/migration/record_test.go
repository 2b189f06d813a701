package migration

import (
	"context"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/today"
)

// todays notes what arrives at an operator of today, for which a resync is an ordinary event.
func (w *world) todays(e today.Event) {
	w.record.Note(arrival(e.Runtime, e.Watched.Name), e.Watched.Name == "resync")
}

func arrival(id, object string) rig.Arrival {
	return rig.Arrival{Runtime: core.RuntimeID(id), Manager: today.Manager, Object: object}
}

// every is the time between two writes in a runtime: three runtimes have 20 a second.
const every = 150 * time.Millisecond

func (w *world) startFlow(m *member) *rig.Flow {
	w.t.Helper()
	return rig.StartFlow(w.t, &w.record, core.RuntimeID(m.id), today.Manager, every, func(ctx context.Context, name string) error {
		return m.Client.Create(ctx, today.WatchedKyma(m.kyma, name))
	})
}
