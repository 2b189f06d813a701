package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/managersfile"
)

// A ConfigMap volume adds managers without a restart. A manager that the file does not list any
// more stays known: the agent sends heartbeats to it, so a webhook that answers 404 would make it
// fresh by mistake.
func TestManagersOfAFileChange(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "managers")
	writeFile(t, path, "widgets\n")
	synctest.Test(t, func(t *testing.T) {
		var (
			out     strings.Builder
			resyncs []core.Manager
		)

		b := &builder{
			parts: Parts{}.withDefaults(), log: jsonLog(&out, 0),
			opts: Options{Managers: []core.Manager{"fixed"}, ManagersFile: path},
		}
		check(t, b.addManagers())
		broken := false
		b.managers.broken = func(now bool) { broken = now }
		acceptor := core.AcceptorFunc(func(manager core.Manager, event core.WatchEvent) core.Outcome {
			if event.Resync {
				resyncs = append(resyncs, manager)
			}
			return core.Accepted
		})

		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- b.managers.asComponent(acceptor, contract.V3).start(ctx) }()

		for _, step := range []struct {
			text    string
			want    []core.Manager
			resyncs []core.Manager
		}{
			{"widgets\n", []core.Manager{"fixed", "widgets"}, nil},
			{"widgets\nfixed\ngadgets\n", []core.Manager{"fixed", "widgets", "gadgets"}, []core.Manager{"gadgets"}},
			{"Not A Manager\n", []core.Manager{"fixed", "widgets", "gadgets"}, nil},
			{"gadgets\n", []core.Manager{"fixed", "widgets", "gadgets"}, nil},
			{"# none\n", []core.Manager{"fixed", "widgets", "gadgets"}, nil},
			{"widgets\n# again\nwidgets\n", []core.Manager{"fixed", "widgets", "gadgets"}, nil},
		} {
			resyncs = nil
			writeFile(t, path, step.text)
			time.Sleep(2 * managersPoll)
			synctest.Wait()

			if diff := cmp.Diff(step.want, b.managers.allManagers()); diff != "" {
				t.Errorf("%q: managers (-want +got):\n%s", step.text, diff)
			}
			if !slices.Equal(step.resyncs, resyncs) {
				t.Errorf("%q: resyncs for %v, want %v", step.text, resyncs, step.resyncs)
			}

			wrong := strings.HasPrefix(step.text, "Not")
			if broken != wrong || strings.Contains(b.managers.fileProblem(), "Not A Manager") != wrong {
				t.Errorf("%q: broken is %t with problem %q, want %t", step.text, broken, b.managers.fileProblem(), wrong)
			}

			for _, manager := range step.want {
				if b.managers.serves("stranger") || !b.managers.serves(manager) {
					t.Errorf("%q: want that %s is served, and no stranger", step.text, manager)
				}
			}
		}

		stop()
		check(t, <-ended)
		for message, want := range map[string]int{
			"the last good list stays in use": 1, "the file with managers is valid again": 1,
			`no longer lists some managers: the agent keeps reporting to them until it restarts","managers":["widgets"]`: 1,
			`no longer lists some managers: the agent keeps reporting to them until it restarts","managers":["gadgets"]`: 1,
		} {
			if n := strings.Count(out.String(), message); n != want {
				t.Errorf("%q is logged %d times, want %d:\n%s", message, n, want, &out)
			}
		}
	})
}

// Managers that the file no longer lists keep their places. Those without a place are named, also
// to the control plane.
func TestManagersWithoutAPlaceAreNamed(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "managers")
	var out strings.Builder
	b := &builder{parts: Parts{}.withDefaults(), log: jsonLog(&out, 0), opts: Options{ManagersFile: path}}
	writeFile(t, path, manyManagers("older", 60))
	check(t, b.addManagers())
	acceptor := core.AcceptorFunc(func(core.Manager, core.WatchEvent) core.Outcome { return core.Accepted })
	writeFile(t, path, manyManagers("newer", 60))
	b.managers.reloadFile(acceptor, contract.V3)
	b.managers.reloadFile(acceptor, contract.V3)

	if n := len(b.managers.allManagers()); n != defaults.MaxManagers || !b.managers.serves("newer-39") || b.managers.serves("newer-40") {
		t.Errorf("%d managers are known, want %d, with 40 of the new ones", n, defaults.MaxManagers)
	}
	if got := b.managers.fileProblem(); !strings.Contains(got, "newer-40") || strings.Contains(got, "newer-39") {
		t.Errorf("problem %q, want the managers without a place", got)
	}
	if n := strings.Count(out.String(), "limit on managers is reached"); n != 1 {
		t.Errorf("managers without a place are logged %d times, want once:\n%s", n, &out)
	}
}

func TestWithoutAListAllManagersAreServed(t *testing.T) {
	t.Parallel()

	b := &builder{}
	if err := b.addManagers(); err != nil || !b.managers.serves("any") {
		t.Errorf("%v, and a manager is not served", err)
	}
}

func TestBrokenManagersFiles(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a\nB/c\nd_e\n":                         "B/c",
		strings.Repeat("a", 64<<10+1):           "bytes, want at most",
		manyManagers("m", defaults.MaxManagers): "101 managers",
	} {
		path := filepath.Join(t.TempDir(), "managers")
		writeFile(t, path, text)
		if _, err := managersfile.Others([]core.Manager{"fixed"}, path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%.20q: error %v, want the path and %q", text, err, want)
		}
	}
}

func manyManagers(prefix string, n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "%s-%d\n", prefix, i)
	}

	return text.String()
}
