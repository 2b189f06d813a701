package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// cluster is the control plane: a real API server.
type cluster struct {
	*apiserver.ControlPlane

	worlds int
}

// withControlPlane calls use with a control plane, and stops it.
func withControlPlane(ctx context.Context, use func(*cluster) error) error {
	plane, err := apiserver.Start(ctx, apiserver.Options{})
	if err != nil {
		return err
	}
	return errors.Join(use(&cluster{ControlPlane: plane}), plane.Stop())
}

// populate creates a namespace with an object for each of n runtimes, and returns its name.
func (c *cluster) populate(ctx context.Context, n int) (namespace string, err error) {
	c.worlds++
	namespace = fmt.Sprintf("fleet-%d", c.worlds)
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := c.Client.Create(ctx, object); err != nil {
		return "", err
	}
	return namespace, inParallel(n, func(number int) error {
		name := nameOf(number)
		return c.Client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: namespace,
			Annotations: map[string]string{controllerruntime.DomainAnnotation: domain(name)},
		}})
	})
}

// lease is the name of the lease of the operator's leader.
const lease = "operator"

func (c *cluster) removeLease(ctx context.Context, namespace string) error {
	return c.Client.Delete(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: lease, Namespace: namespace}})
}

// inParallel calls do with each number below n, and returns the errors.
func inParallel(n int, do func(number int) error) error {
	const parallel = 32
	var (
		calls sync.WaitGroup
		mu    sync.Mutex
		errs  []error
	)
	for worker := range parallel {
		calls.Go(func() {
			for number := worker; number < n; number += parallel {
				if err := do(number); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
					return
				}
			}
		})
	}
	calls.Wait()
	return errors.Join(errs...)
}
