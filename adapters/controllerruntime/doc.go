// Package controllerruntime connects a listener to an operator that is built with
// controller-runtime.
//
// # Overview
//
// [AddListener] adds a listener to a controller manager. [SourceFor] makes a [Source] for each
// controller that receives its events. A [MapFunc] maps each verified event to requests. The source
// adds the requests directly to the workqueue of the controller.
//
// [Runtimes] finds the objects that represent runtimes, in the cache of the controller manager. SAN
// pinning reads their registered domains, and [EnqueueByRuntime] their names.
//
// # Usage
//
//  1. Make [Runtimes] for the kind of the objects, with [ByName], [ByLabel] or your own function.
//  2. Call [AddListener] with the senders, listener.SANPinning(runtimes), a fleet and the runtimes.
//  3. Call [SourceFor] for each controller, with [EnqueueByRuntime] or [EnqueueFor].
//  4. Pass each source to WatchesRawSource of its controller.
//
// For adaptive polling, the reconciler returns the result of the fleet's RequeueAfter for the
// runtime that [Runtimes.ID] returns.
//
// An operator with several replicas adds [NewLeaderEndpoint], which makes the leader the only
// endpoint of a Service.
//
// [RegisterListenerComponent] returns the parts for an operator that has one controller and adds
// the parts to its controller manager. [ToChannel] is for an operator that keeps a source.Channel.
// Package controllerruntimetest provides a cache in memory, so that unit tests need no API server.
//
// # Rationale
//
// A forgotten step is an error during set-up or a line in the log, because an operator that looks
// healthy but gets no events is the worst outcome. docs/guide/embedding.md contains a table.
//
// An event never waits for a cache and never causes a call to the API server, because its sender is
// waiting. Goroutines run only while the controller manager runs.
//
// A [core.Manager] is the name of an operator in the paths of a listener. It is not the Manager of
// controller-runtime, which these comments call controller manager.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package controllerruntime
