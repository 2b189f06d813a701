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

func (w *world) startFlow(m *member) {
	w.t.Helper()
	m.flow = rig.StartFlow(w.t, &w.record, core.RuntimeID(m.id), today.Manager, every, func(ctx context.Context, name string) error {
		return m.Client.Create(ctx, today.WatchedKyma(m.kyma, name))
	})
}

// replacing has an agent replaced. Only then may a resync stand in for a write.
func (w *world) replacing(replace func()) {
	for _, m := range w.members {
		m.windows = append(m.windows, rig.Window{From: m.flow.Committed()})
	}
	replace()
	for _, m := range w.members {
		m.windows[len(m.windows)-1].To = m.flow.Count()
	}
}

// settle wants each write to have arrived, and the rate that the guide names.
func (w *world) settle() {
	w.t.Helper()
	rate := 0.0
	for _, m := range w.members {
		m.flow.Settle(patience, m.windows...)
		rate += m.flow.Rate()
	}
	if rate < 19.5 {
		w.t.Errorf("%.1f writes a second, want 20", rate)
	}
}
