package installation

import (
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// together runs tasks in parallel, and joins their errors in the order of the tasks.
func together(tasks ...func() error) error {
	var running sync.WaitGroup
	failed := make([]error, len(tasks))
	for n, task := range tasks {
		running.Go(func() { failed[n] = task() })
	}

	running.Wait()
	return errors.Join(failed...)
}

// forEach runs one task for each object, in parallel.
func forEach(objects []*unstructured.Unstructured, task func(*unstructured.Unstructured) error) error {
	tasks := make([]func() error, len(objects))
	for n, object := range objects {
		tasks[n] = func() error { return task(object) }
	}
	return together(tasks...)
}
