package fleet

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Start reviews the runtimes every second and delivers resyncs to the handlers of their managers,
// until ctx ends. A review calls the observers and forgets runtimes that are silent for too long. A
// delivery that fails is retried. Start blocks and waits for its goroutines.
//
// Several calls of Start may run with handlers for different managers, for example for two
// listeners. Start fails if another call of Start has a handler for one of the managers, or if a
// handler is nil.
func (r Receiver) Start(ctx context.Context, handlers map[core.Manager]core.Handler) error {
	f := r.fleet
	if err := f.addHandlers(handlers); err != nil {
		return err
	}
	defer f.removeHandlers(handlers)

	var tasks sync.WaitGroup
	defer tasks.Wait()

	// Each in its own goroutine: a handler that hangs delays its manager only.
	for manager, handler := range handlers {
		tasks.Go(func() { f.deliverTo(ctx, manager, handler) })
	}

	f.reviewEverySecond(ctx)
	return nil
}

// addHandlers takes the handlers of a call of Start, unless one of their managers is taken.
func (f *Fleet) addHandlers(handlers map[core.Manager]core.Handler) error {
	f.mu.Lock()
	defer f.mu.Unlock()

	for manager, handler := range handlers {
		if option.IsNil(handler) {
			return fmt.Errorf("fleet: the handler of manager %q is nil", manager)
		}
		if _, taken := f.served[manager]; taken {
			return fmt.Errorf("fleet: resyncs of the manager are already delivered elsewhere: "+
				"want one handler for each manager: %q", manager)
		}
		f.settled[manager] = true
	}

	maps.Copy(f.served, handlers)
	return nil
}

// removeHandlers ends a call of Start.
func (f *Fleet) removeHandlers(handlers map[core.Manager]core.Handler) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for manager := range handlers {
		delete(f.served, manager)
	}

	if len(f.served) == 0 {
		f.leads = time.Time{}
	}
}
