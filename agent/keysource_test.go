package agent

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/keys"
)

// sourceFunc is a [keys.Source].
type sourceFunc func() (*keys.Material, error)

func (f sourceFunc) Material() (*keys.Material, error) { return f() }

// The last good material of a source stays in use, and each failure is reported once.
func TestKeySourceIsFollowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		older := &keys.Material{Fingerprint: "older"}
		newer := &keys.Material{Fingerprint: "newer"}
		material := older
		problem := error(nil)
		var (
			mu    sync.Mutex // of the source and the calls
			calls []string
		)

		call := func(name string) {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, name)
		}

		f := must(follow(sourceFunc(func() (*keys.Material, error) {
			mu.Lock()
			defer mu.Unlock()
			return material, problem
		}), keys.FilesHooks{
			Reloaded: func(keys.Generation) { call("reloaded") }, Refused: func(r keys.Refusal) { call(string(r.Problem)) },
		}))(t)

		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- f.Start(ctx) }()

		for _, step := range []struct {
			material *keys.Material
			err      error
			want     string
			calls    []string
		}{
			{older, nil, "older", nil},
			{nil, broken("mismatch"), "older", []string{"mismatch"}},
			{nil, broken("mismatch"), "older", nil},
			{nil, errors.New("no answer"), "older", []string{"unreadable"}},
			{older, nil, "older", nil},
			{newer, nil, "newer", []string{"reloaded"}},
		} {
			mu.Lock()
			material, problem = step.material, step.err
			calls = nil
			mu.Unlock()
			time.Sleep(keysPoll)
			synctest.Wait()
			status := f.Status()
			mu.Lock()
			have := calls
			mu.Unlock()

			if diff := cmp.Diff(step.calls, have); diff != "" || status.Material.Fingerprint != step.want {
				t.Errorf("%+v: material %s, calls (-want +have):\n%s", step, status.Material.Fingerprint, diff)
			}
			if !errors.Is(status.Err, step.err) {
				t.Errorf("error %v, want %v", status.Err, step.err)
			}
		}

		stop()
		check(t, <-ended)
	})
}

func TestKeySourceMustBeginWithMaterial(t *testing.T) {
	t.Parallel()

	missing := errors.New("missing")
	parts := Parts{ClientKeys: sourceFunc(func() (*keys.Material, error) { return nil, missing })}
	if _, err := New(t.Context(), Connection{Address: "kcp.example.com"}, parts, Options{}); !errors.Is(err, missing) {
		t.Errorf("error %v, want %v", err, missing)
	}
}

// broken is an error of a source of its own.
type broken string

func (b broken) Error() string  { return "broken: " + string(b) }
func (b broken) Reason() string { return string(b) }
