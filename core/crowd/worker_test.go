package crowd_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/crowd"
)

func TestWorker(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		const late = time.Minute

		turns := crowd.NewTurns(1)
		until := time.Now().Add(late)
		first, second, third := turns.Worker("a", until), turns.Worker("b", until), turns.Worker("c", until)
		gone, ended := make(chan struct{}), make(chan error, 1)

		second.Rest() // It has nothing to give.

		for range 3 {
			if err := first.Wait(nil); err != nil {
				t.Fatal(err)
			}

			first.Rest()
			first.Rest()
		}

		if err := first.Wait(nil); err != nil {
			t.Fatal(err)
		}

		go func() { ended <- second.Wait(gone) }()

		synctest.Wait()
		second.Rest() // Its turn has not come.
		close(gone)

		if err := <-ended; !errors.Is(err, crowd.ErrGone) {
			t.Errorf("who has gone is told %v, want %v", err, crowd.ErrGone)
		}

		began := time.Now()
		if err := third.Wait(nil); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != late {
			t.Errorf("who is late is told %v after %v, want %v after %v", err, time.Since(began), context.DeadlineExceeded, late)
		}

		first.Rest()

		// Neither of the two took a place with it.
		if err := second.Wait(nil); err != nil {
			t.Error(err)
		}
	})
}
