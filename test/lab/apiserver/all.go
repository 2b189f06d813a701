package apiserver

import (
	"context"
	"errors"
	"sync"
)

// atOnce is the number of control planes that start at the same time.
const atOnce = 3

// StartAll starts control planes concurrently, and returns them in the order of their options. The
// caller must call stop, also after an error.
func StartAll(ctx context.Context, all []Options) (planes []*ControlPlane, stop func() error, err error) {
	planes, slots := make([]*ControlPlane, len(all)), make(chan struct{}, atOnce)
	err = each(all, func(i int) (err error) {
		slots <- struct{}{}
		defer func() { <-slots }()
		planes[i], err = Start(ctx, all[i])
		return err
	})
	return planes, func() error {
		return each(all, func(i int) error {
			if planes[i] == nil {
				return nil
			}
			return planes[i].Stop()
		})
	}, err
}

// each calls do concurrently for the index of each control plane.
func each(all []Options, do func(i int) error) error {
	var work sync.WaitGroup
	errs := make([]error, len(all))
	for i := range all {
		work.Go(func() { errs[i] = do(i) })
	}
	work.Wait()
	return errors.Join(errs...)
}
