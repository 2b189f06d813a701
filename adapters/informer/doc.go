// Package informer is a change source that watches objects through the Kubernetes API of a runtime,
// after the commit. It needs the rights to list and watch the objects, and no webhook.
//
// A [Source] keeps a digest of each object: enough to see whether the watched part changed, and not
// the object. A [core.Filter] decides whether a change matters, as in adapters/admission. An event
// for it goes to a [core.Acceptor], which must not block. A change is committed when it is seen, so
// the outbox needs no settle time and no resends.
//
// The first list of a watch makes no events for its objects, but one resync for the manager:
// changes before it are unknown. Every later list is compared with the digests, so that changes and
// deletions during an outage become events. A resync follows, for objects that came and went in
// between.
package informer
