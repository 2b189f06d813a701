package main

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// lease is a Lease in memory. In a cluster, the API server has it.
type lease struct {
	mu      sync.Mutex
	record  *resourcelock.LeaderElectionRecord
	version int
}

// lock is the lease as one replica sees it.
type lock struct {
	*lease

	identity string
	seen     int // the version that the replica has read
}

var _ resourcelock.Interface = (*lock)(nil)

var errConflict = errors.New("another replica has changed the lease")

// Get implements [resourcelock.Interface].
func (l *lock) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.record == nil {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, "my-operator")
	}
	l.seen = l.version
	record := *l.record
	raw, err := json.Marshal(record)
	return &record, raw, err
}

// Create implements [resourcelock.Interface].
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.Update(ctx, record)
}

// Update implements [resourcelock.Interface]. It fails if another replica was faster.
func (l *lock) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen != l.version {
		return errConflict
	}
	l.version++
	l.record, l.seen = &record, l.version
	return nil
}

// RecordEvent implements [resourcelock.Interface].
func (l *lock) RecordEvent(string) {}

// Identity implements [resourcelock.Interface].
func (l *lock) Identity() string { return l.identity }

// Describe implements [resourcelock.Interface].
func (l *lock) Describe() string { return "my-operator" }
