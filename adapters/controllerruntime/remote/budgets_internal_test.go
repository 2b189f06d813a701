package remote

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// reader is a reconcile with answers.
type reader struct {
	ctx context.Context //nolint:containedctx // It is that of the reconcile.
	end func()
}

func begin(t *testing.T, b *Budgets, cluster string, slow bool) reader {
	t.Helper()
	ctx, end := b.Begin(t.Context(), Use{Cluster: cluster, Slow: slow})
	return reader{ctx, end}
}

// read takes the room of an answer that has arrived.
func (r reader) read(weight int64) error {
	own := budgetOf(r.ctx)
	if err := own.reserveWeight(weight); err != nil {
		return err
	}
	return own.awaitRoom(r.ctx, weight)
}

// Two hostile clusters hold the room with late answers. Others get it from them within the lease,
// and immediately if they are in the slow lane.
func TestLargeAnswersGiveWay(t *testing.T) {
	for name, test := range map[string]struct {
		holders int
		slow    bool
		within  time.Duration
	}{
		"control: nobody":      {0, false, 0},
		"one":                  {1, false, 0},
		"two":                  {2, false, lease + lease/2},
		"two of the slow lane": {2, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := NewBudgets()
				var hostile sync.WaitGroup
				displaced := make(chan string, 2)
				for n := range test.holders {
					name := fmt.Sprint("hostile-", n)
					r := begin(t, b, name, test.slow)
					if err := r.read(mostWeight); err != nil {
						t.Fatal(err)
					}

					hostile.Go(func() {
						<-r.ctx.Done() // Another answer never arrives.
						r.end()
						if errors.Is(context.Cause(r.ctx), errDisplaced) {
							displaced <- name
						}
					})
				}

				time.Sleep(time.Millisecond)
				begun := time.Now()
				honest := begin(t, b, "honest", false)
				if err := honest.read(mostWeight / 2); err != nil {
					t.Error(err)
				}
				if took := time.Since(begun); took > test.within {
					t.Errorf("it waited %v, want at most %v", took, test.within)
				}

				honest.end()
				for _, holder := range b.all() {
					holder.cancel(nil)
				}

				hostile.Wait()
				if b.used != 0 || len(b.holders) != 0 || len(b.waiting) != 0 {
					t.Errorf("%d are used, %d hold, %d wait", b.used, len(b.holders), len(b.waiting))
				}
			})
		})
	}
}

// The room is never larger than its bound, and the cluster with the least comes first.
func TestTheRoomOfAProcessIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudgets()
		first := begin(t, b, "a", false)
		second := begin(t, b, "b", false)
		for _, r := range []reader{first, second} {
			if err := r.read(mostWeight); err != nil {
				t.Fatal(err)
			}
		}

		var order []string
		var mu sync.Mutex
		var others sync.WaitGroup
		for _, cluster := range []string{"a", "c"} { // a has the most already.
			r := begin(t, b, cluster, false)
			others.Go(func() {
				defer r.end()
				if err := r.read(mostWeight / 4 * 3); err != nil {
					t.Error(err)
				}

				mu.Lock()
				order = append(order, cluster)
				used := b.used
				mu.Unlock()
				if used > roomWeight {
					t.Errorf("%d are used", used)
				}

				time.Sleep(time.Millisecond)
			})
			synctest.Wait()
		}

		second.end()
		others.Wait()
		if len(order) != 2 || order[0] != "c" {
			t.Errorf("order %v, want c first", order)
		}

		first.end()
	})
}

func TestOneReconcileHasOneBudget(t *testing.T) {
	b := NewBudgets()
	outer := begin(t, b, "a", false)
	inner, end := b.Begin(outer.ctx, Use{Cluster: "b"})
	end()
	if err := (reader{inner, nil}).read(mostWeight / 2); err != nil {
		t.Error(err)
	}
	if err := outer.read(mostWeight/2 + 1); !errors.Is(err, ErrLargeAnswer) {
		t.Errorf("got %v, want that the budget is spent", err)
	}

	outer.end()
	if err := outer.read(1); err == nil {
		t.Error("a late answer is read")
	}
}

// What the operator has written itself takes no room, and never exceeds the budget.
func TestOwnObjectsAreFree(t *testing.T) {
	b := NewBudgets()
	r := begin(t, b, "a", false)
	defer r.end()
	const own = 2 * mostWeight
	Allow(r.ctx, own)
	if err := r.read(own); err != nil || b.used != 0 {
		t.Errorf("got %v, and %d are used", err, b.used)
	}
	if err := r.read(smallWeight + 1); !errors.Is(err, ErrLargeAnswer) {
		t.Errorf("got %v, want that all is bounded", err)
	}

	Allow(t.Context(), own) // Without a budget it does nothing.
	if Weigh(map[string]any{"a": []int{1, 2}}) < 3*valueWeight || Weigh(func() {}) != 0 {
		t.Error("an object weighs less than its values, or a function something")
	}
}

func TestFieldsOfListsAreDropped(t *testing.T) {
	for have, want := range map[string]string{
		`{"items":[{"metadata":{"managedFields":[{"a":{"f:x":{}}},"}]"],"name":"n"}}]}`:                   `{"items":[{"metadata":{"managedFields":null,"name":"n"}}]}`,
		`{"items":[{"metadata":{"name":"n","managedFields":[1]}},{"metadata":{"managedFields" : [2] }}]}`: `{"items":[{"metadata":{"name":"n","managedFields":null}},{"metadata":{"managedFields" :null}}]}`,
		`{"metadata":{"managedFields":[1]}}`:                                                              "",
		`{"items":[{"spec":{"metadata":{"managedFields":[1]}}}]}`:                                         "",
		`{"items":[{"metadata":{"labels":{"managedFields":"x"}}}]}`:                                       "",
		`{"items":[{"metadata":{"a":"\"managedFields\":[1]"}}]}`:                                          "",
		`{"items":[[{"metadata":{"managedFields":[1]}}]]}`:                                                "",
		`{"items":{"metadata":{"managedFields":[1]}}}`:                                                    "",
		`{"spec":{"items":[{"metadata":{"managedFields":[1]}}]}}`:                                         "",
		`{"kind":"a","x":["items",{"metadata":{"managedFields":[1]}}]}`:                                   "",
		`[{"metadata":{"managedFields":[1]}}]`:                                                            "",
		`{"items":[{"metadata":{"managedFieldsX":[1],"managedField":2}}]}`:                                "",
		`}}]]{"items":`: "",
	} {
		if want == "" {
			want = have
		}
		for _, size := range []int{1, 2, 7, len(have)} {
			filter := &fieldsFilter{}
			got := []byte(nil)
			for rest := []byte(have); len(rest) > 0; rest = rest[min(size, len(rest)):] {
				got = filter.appendTo(got, rest[:min(size, len(rest))])
			}

			if string(got) != want {
				t.Errorf("%s in parts of %d becomes %s, want %s", have, size, got, want)
			}
		}
	}
}

// all returns the holders. They change when one of them is cancelled.
func (b *Budgets) all() (all []*budget) {
	b.mu.Lock()
	defer b.mu.Unlock()

	for _, holders := range b.holders {
		for holder := range holders {
			all = append(all, holder)
		}
	}

	return all
}
