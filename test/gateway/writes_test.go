package gateway_test

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const writers = 8

// atRate calls write for numbered objects in turn, perSecond times a second, until ctx ends. It returns when the last
// call has.
func atRate(ctx context.Context, perSecond, objects int, write func(object string)) {
	var (
		running sync.WaitGroup
		next    = make(chan string)
	)

	for range writers {
		running.Go(func() {
			for object := range next {
				write(object)
			}
		})
	}

	started := time.Now()

	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()

	for n := 0; ctx.Err() == nil; <-tick.C {
		for ; n < int(time.Since(started).Seconds()*float64(perSecond)) && ctx.Err() == nil; n++ {
			next <- objectName(n % objects)
		}
	}

	close(next)
	running.Wait()
}

func objectName(n int) string { return fmt.Sprint("object-", n) }
