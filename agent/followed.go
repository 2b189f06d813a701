package agent

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

const keysPoll = 5 * time.Second

// material is key material that is followed. [keys.Files] implements it.
type material interface {
	keys.Source

	Status() keys.Status
	Start(ctx context.Context) error
}

// followed follows a source as [keys.Files] follows files: its last good material stays in use.
type followed struct {
	source keys.Source
	hooks  keys.FilesHooks
	status atomic.Pointer[keys.Status]
}

func follow(source keys.Source, hooks keys.FilesHooks) (*followed, error) {
	first, err := source.Material()
	if err != nil {
		return nil, err
	}
	f := &followed{source: source, hooks: hooks}
	f.status.Store(&keys.Status{Material: first, Loaded: time.Now()})
	return f, nil
}

// Material returns the last valid material. It never fails.
func (f *followed) Material() (*keys.Material, error) { return f.Status().Material, nil }

func (f *followed) Status() keys.Status { return *f.status.Load() }

func (f *followed) Start(ctx context.Context) error {
	f.reloadSource()
	periodic.Call(ctx, keysPoll, f.reloadSource)
	return nil
}

func (f *followed) reloadSource() {
	before := f.Status()
	newest, err := f.source.Material()
	switch {
	case err != nil:
		f.status.Store(&keys.Status{Material: before.Material, Loaded: before.Loaded, Err: err})
		if before.Err == nil || before.Err.Error() != err.Error() {
			f.hooks.Refused(keys.Refusal{Problem: keys.ProblemOf(err)})
		}
	case newest != before.Material:
		f.status.Store(&keys.Status{Material: newest, Loaded: time.Now()})
		f.hooks.Reloaded(keys.Generation{NotBefore: newest.NotBefore, NotAfter: newest.NotAfter})
	case before.Err != nil:
		f.status.Store(&keys.Status{Material: newest, Loaded: before.Loaded})
	}
}
