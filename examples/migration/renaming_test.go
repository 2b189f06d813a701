package migration

import (
	"slices"

	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab/today"
)

const renaming = "docs/platforms/renaming.md"

// rename reads the section of a fleet whose migration has ended, and runs each of its blocks in their
// order, as it does with those of the migration.
func (w *world) rename() {
	w.t.Helper()
	const title = "Renaming after step 8"
	page := read(string(test.Read(w.t, renaming)))
	n := slices.IndexFunc(page, func(s section) bool { return s.title == title })
	if n < 0 {
		w.t.Fatalf("%s has no section %q", renaming, title)
	}
	w.section = page[n]
	w.at = 0

	w.ours.opts.GatewaySecret = today.Next.GatewaySecret()
	w.ours.release(8)
	w.mustBlock("replace -f")
	w.everywhereArrives("renamed-gateway")

	w.mustBlock("runtimewatchers/")
	w.ours.opts.WatcherKind = today.Next.WatcherKind().Kind
	w.ours.release(8)
	w.mustBlock("delete watchers")
	w.mustBlock("RouteReady")
	w.everywhereArrives("renamed-kind")

	w.mustBlock("delete secret")
	w.everywhereArrives("renamed")
	w.fresh()
	for _, block := range w.section.blocks {
		if !w.ran[title+block] {
			w.t.Errorf("%s has a block that was not run: %s", renaming, block)
		}
	}
}
