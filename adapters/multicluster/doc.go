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
//     stays as it is.
//
// # Differences from caches
//
// A cluster costs no watch, and a connection only while it is used. Each read of a reconcile is a
// request, so set MaxConcurrentReconciles of the controller, such as 10. A resync finds objects
// that were deleted since their last reconcile. Deletions while the operator does not run are not
// seen, so use finalizers. The agents must watch each kind that a controller depends on.
//
// # Bounds
//
// Make the clients by remote.NewKubeconfigs, which bounds the answers of an API server. No cluster
// takes the workers of the others, fills the queue or keeps a list without end: see [Complete].
//
// Clusters of other providers work with [Enqueue] and [Complete], too.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package multicluster
