package agent

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// diary records the order of calls.
type diary struct {
	mu      sync.Mutex
	entries []string
}

func (d *diary) note(entry string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entries = append(d.entries, entry)
}

func (d *diary) component(name string, err error) component {
	return component{name, func(ctx context.Context) error {
		<-ctx.Done()
		d.note(name)
		return err
	}}
}

func TestComponentsStopOneAfterTheOther(t *testing.T) {
	t.Parallel()
	var d diary
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	broken := errors.New("broken")
	err := runAll(ctx, []component{d.component("first", nil), d.component("second", broken), d.component("third", nil)})
	if !errors.Is(err, broken) || err.Error() != "second: broken" {
		t.Errorf("error %v, want that of the second", err)
	}
	if diff := cmp.Diff([]string{"third", "second", "first"}, d.entries); diff != "" {
		t.Errorf("order of stop (-want +got):\n%s", diff)
	}
}

func TestAComponentThatEndsEndsAll(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, test := range map[string]struct{ have, want error }{
		"failed":  {broken, broken},
		"in vain": {nil, errEnded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d diary
			err := runAll(t.Context(), []component{
				d.component("first", nil),
				{"culprit", func(context.Context) error { return test.have }},
				d.component("last", nil),
			})
			if !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
			if diff := cmp.Diff([]string{"last", "first"}, d.entries); diff != "" {
				t.Errorf("order of stop (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCloser(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := closer("x", func() error { return broken }).start(ctx); !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
}
