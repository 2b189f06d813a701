package installation

import "sync"

// together runs tasks at the same time, and returns the first error in the order of the tasks.
func together(tasks ...func() error) error {
	var running sync.WaitGroup
	failed := make([]error, len(tasks))
	for n, task := range tasks {
		running.Go(func() { failed[n] = task() })
	}
	running.Wait()
	for _, err := range failed {
		if err != nil {
			return err
		}
	}
	return nil
}
