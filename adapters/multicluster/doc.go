// Package multicluster lets controllers of sigs.k8s.io/multicluster-runtime reconcile many clusters
// without caches. Agents in the clusters send events, which say when to reconcile. A reconcile
// reads from the API server of the cluster.
//
// # Usage
//
//  1. Make a [Provider] from Secrets with kubeconfigs, and a controller manager of
//     multicluster-runtime with it.
//  2. Call controllerruntime.AddListener with the local controller manager, and
//     controllerruntime.SourceFor with [Enqueue].
//  3. Pass its source to [Complete], in place of For and Complete of a builder. The reconciler
//     stays unchanged.
//
// # Differences from caches
//
// A cluster needs no watch, and needs a connection only while it is used. Each read of a reconcile
// is a request, so set MaxConcurrentReconciles of the controller, such as 10. A resync finds
// objects that were deleted since their last reconcile. Deletions while the operator does not run
// are missed, so use finalizers. The agents must watch each kind that a controller depends on.
//
// # Bounds
//
// Make the clients with remote.NewKubeconfigs, which bounds the answers of an API server. No
// cluster can take the workers of other clusters, fill the queue, or keep a list running for ever:
// see [Complete].
//
// [Enqueue] and [Complete] also work with clusters of other providers.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package multicluster
