// Package controllerruntime connects a listener to an operator that is built with
// controller-runtime.
//
// # Overview
//
// [AddListener] adds a listener to a controller manager. [SourceFor] makes a [Source] for each
// controller that takes its events. A [MapFunc] makes the requests of each verified event. The
// source puts them straight into the workqueue of the controller.
//
// [Runtimes] finds the objects that represent runtimes, in the cache of the controller manager. SAN
// pinning reads their registered domains, and [EnqueueByRuntime] their names.
//
// # Usage
//
//  1. Make [Runtimes] for the kind of the objects, with [ByName], [ByLabel] or a function of your
//     own.
//  2. Call [AddListener] with the senders, listener.SANPinning(runtimes), a fleet and the runtimes.
//  3. Call [SourceFor] for each controller, with [EnqueueByRuntime] or [EnqueueFor].
//  4. Pass each source to WatchesRawSource of its controller.
//
// For adaptive polling, the reconciler returns RequeueAfter of the fleet, for the runtime that
// [Runtimes.ID] names.
//
// An operator with several replicas adds [NewLeaderEndpoint], which makes the leader the only
// endpoint of a Service.
//
// [RegisterListenerComponent] returns the parts of an operator with one controller, which adds them
// itself. [ToChannel] is for an operator that keeps a source.Channel. Package
// controllerruntimetest has a cache in memory, so that unit tests need no API server.
//
// # Rationale
//
// A step that is forgotten is an error of the set-up, or a line in the log: an operator that looks
// healthy and gets no event is the worst outcome. docs/guide/embedding.md has a table.
//
// An event never waits for a cache, or costs a call of the API server, because its sender waits
// meanwhile. Goroutines run only while the controller manager does.
//
// A [core.Manager] is the name of an operator in the paths of a listener. It is not the Manager of
// controller-runtime, which these comments call controller manager.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package controllerruntime
