package informer

import (
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// follower starts again when the API server no longer serves the resource.
type follower struct {
	client rest.Interface
	watch  *watched
	store  cache.ReflectorStore
	// objects is the store, unless it is that of the namespaces. Then labels are the keys of the
	// labels that watches select by.
	objects *objects
	labels  map[string]bool
	// whole says whether an object did not count generations, so that metadata is not enough.
	whole bool
	// unended counts the streaming watches in a row of which the API server did not end the list.
	unended atomic.Int32

	health     *health
	conditions []*condition
}

func (f *follower) noteSuccess() {
	for _, c := range f.conditions {
		f.health.noteSuccess(c)
	}
}

func (f *follower) noteFailure(err error) {
	for _, c := range f.conditions {
		f.health.noteFailure(c, err)
	}
}

// isRetried reports whether a reflector repeats the same request after an error.
func isRetried(err error) bool {
	if err == nil {
		return false
	}
	return utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err)
}
