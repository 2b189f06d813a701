package fairness

import (
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"
)

const (
	quietRuntimes = 200
	quietEvery    = 250 * time.Millisecond
)

// quiet are runtimes that send a few events a second each.
type quiet struct{ senders []*sender }

// measured is what quiet runtimes went through.
type measured struct {
	took    []time.Duration // of what was taken, ascending
	refused map[int]int     // by status, 0 is no answer
}

func (m *measured) p(percent int) time.Duration {
	if len(m.took) == 0 {
		return 0
	}

	return m.took[(len(m.took)-1)*percent/100]
}

// run lets all of them send for a while, each at its own beat. What counts is the time from when an event is due.
func (q *quiet) run(t testing.TB, round time.Duration) measured {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), round)
	defer cancel()

	var (
		group sync.WaitGroup
		mu    sync.Mutex
		all   = measured{refused: make(map[int]int)}
	)

	for _, s := range q.senders {
		group.Go(func() {
			due := time.NewTimer(rand.N(quietEvery))
			defer due.Stop()

			for {
				var at time.Time

				select {
				case at = <-due.C:
				case <-ctx.Done():
					return
				}

				due.Reset(quietEvery)

				status, _, err := s.send(t.Context())
				took := time.Since(at)

				mu.Lock()
				if err == nil && status == http.StatusAccepted {
					all.took = append(all.took, took)
				} else {
					all.refused[status]++
				}
				mu.Unlock()
			}
		})
	}

	group.Wait()
	slices.Sort(all.took)

	return all
}

func (m *measured) add(other measured) {
	m.took = append(m.took, other.took...)
	slices.Sort(m.took)

	if m.refused == nil {
		m.refused = make(map[int]int)
	}

	for status, n := range other.refused {
		m.refused[status] += n
	}
}
