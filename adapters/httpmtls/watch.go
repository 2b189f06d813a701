package httpmtls

import (
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/fsnotify/fsnotify"
)

// watch notices changes in the directories of files. The directories, not the files: a secret volume swaps the symbolic
// link ..data beside them. It is for one goroutine.
type watch struct {
	watcher *fsnotify.Watcher
	// events and errors are nil, and block for ever, when there is no watcher. An error is as good as a change: some may have been missed.
	events <-chan fsnotify.Event
	errors <-chan error
	dirs   []string
	failed map[string]string
	logger *slog.Logger
}

// watch returns a watch that never notices anything where the system refuses to notify, as on a node that has run out of inotify
// instances.
func (f *Files) watch() *watch {
	w := &watch{dirs: f.paths.dirs(), failed: map[string]string{}, logger: f.opts.Logger}

	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		w.logger.Warn("key material is polled only: no notification of files", slog.Any("error", err), slog.Duration("poll", f.opts.Poll))

		return w
	}

	w.watcher, w.events, w.errors = watcher, watcher.Events, watcher.Errors
	w.renew()

	return w
}

func (p Paths) dirs() []string {
	var dirs []string

	for _, path := range []string{p.CA, p.Certificate, p.Key} {
		if path != "" {
			dirs = append(dirs, filepath.Dir(path))
		}
	}

	slices.Sort(dirs)

	return slices.Compact(dirs)
}

// renew watches the directories that were not there before, or were replaced. For the others it does nothing.
func (w *watch) renew() {
	if w.watcher == nil {
		return
	}

	for _, dir := range w.dirs {
		err := w.watcher.Add(dir)
		if err == nil {
			delete(w.failed, dir)

			continue
		}

		if w.failed[dir] != err.Error() {
			w.failed[dir] = err.Error()
			w.logger.Warn("directory of key material is polled only", slog.String("dir", dir), slog.Any("error", err))
		}
	}
}

func (w *watch) report(err error) {
	w.logger.Debug("notification of files failed, they are read in any case", slog.Any("error", err))
}

func (w *watch) close() {
	if w.watcher != nil {
		_ = w.watcher.Close() // Nothing is left to do about it.
	}
}
