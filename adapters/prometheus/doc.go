// Package prometheus exposes metrics of an agent, of a listener and of a fleet to Prometheus. It is fed by hooks: the methods of [Agent] and
// [Listener] have the signatures of the hooks of the parts that they measure, which they neither import nor wrap. A fleet is read at each
// scrape. Nothing is global: metrics are
// registered with the [prom.Registerer] that the caller passes, who also serves them.
//
// The package is named like the client library that it uses. Whoever needs both imports that one as prom.
//
// # Metrics of an agent
//
//	runtime_watcher_agent_events_accepted_total{manager}                   counter    events offered to the outbox
//	runtime_watcher_agent_events_delivered_total{manager}                  counter    … acknowledged by the control plane
//	runtime_watcher_agent_events_coalesced_total{manager}                  counter    … represented by another with the same key
//	runtime_watcher_agent_events_dropped_total{manager,reason}             counter    … given up
//	runtime_watcher_agent_events_pending{manager}                          gauge      … waiting to be sent or acknowledged
//	runtime_watcher_agent_forward_events_total{manager,result}             counter    events in attempts to forward them
//	runtime_watcher_agent_forward_duration_seconds{result}                 histogram  one attempt to forward
//	runtime_watcher_agent_forward_connections_total{result}                counter    attempts to connect to the control plane
//	runtime_watcher_agent_forward_retries_total{code}                      counter    short retries within an attempt to forward
//	runtime_watcher_agent_contract_in_use{manager,contract}                gauge      1 for the contract that events travel with
//	runtime_watcher_agent_contract_unknown_total{manager}                  counter    attempts that show that it is not known there
//	runtime_watcher_agent_canary_duration_seconds{state}                   histogram  one write of the canary
//	runtime_watcher_agent_canary_state{state}                              gauge      1 for the state that the last one showed
//	runtime_watcher_agent_admission_reviews_total{manager,decision}        counter    admission reviews answered
//	runtime_watcher_agent_admission_owner_problems_total{manager,problem}  counter    reviews of objects without usable owner
//	runtime_watcher_agent_admission_refusals_total{code,reason}            counter    requests that were no review it could read
//	runtime_watcher_agent_admission_panics_total{place}                    counter    panics that were caught
//	runtime_watcher_agent_admission_duration_seconds{decision}             histogram  answering a request of the webhook
//	runtime_watcher_agent_admission_in_flight                              gauge      requests of the webhook being answered
//	runtime_watcher_agent_tls_handshake_failures_total{cause}              counter    failed TLS handshakes at the webhook
//	runtime_watcher_agent_connections_dropped_total{server,reason}         counter    … that were closed because there were too many
//	runtime_watcher_agent_stalls_total                                     counter    times it did not run for 1 s or longer; a resync stands in
//	runtime_watcher_agent_certificate_reloads_total{use}                   counter    new key material taken into use
//	runtime_watcher_agent_certificate_reload_failures_total{use,problem}   counter    … refused: the last good one stays in use
//	runtime_watcher_agent_certificate_expiry_timestamp_seconds{use}        gauge      when the certificate in use expires
//
// At every scrape, for every manager and so for their sum:
//
//	accepted = delivered + coalesced + the sum of dropped over all reasons + pending
//
// # Metrics of a listener
//
//	runtime_watcher_listener_requests_total{contract,manager,code,reason}    counter    requests answered
//	runtime_watcher_listener_request_duration_seconds{contract,code}         histogram  answering a request
//	runtime_watcher_listener_requests_in_flight                              gauge      requests that verifier or handler work on
//	runtime_watcher_listener_tls_handshake_failures_total{cause}             counter    failed TLS handshakes
//	runtime_watcher_listener_connections_dropped_total{reason}               counter    … that were closed because there were too many
//	runtime_watcher_listener_certificate_reloads_total{use}                  counter    new key material taken into use
//	runtime_watcher_listener_certificate_reload_failures_total{use,problem}  counter    … refused: the last good one stays in use
//	runtime_watcher_listener_certificate_expiry_timestamp_seconds{use}       gauge      when the certificate in use expires
//
// # Metrics of a fleet
//
//	runtime_watcher_fleet_runtimes{manager,state,reason}                      gauge    runtimes in each state, all of them at zero if none is
//	runtime_watcher_fleet_events_pending{manager}                             gauge    events that wait in the runtimes
//	runtime_watcher_fleet_oldest_event_pending_seconds{manager}               gauge    age of the oldest of them
//	runtime_watcher_fleet_first_certificate_expiry_timestamp_seconds{manager} gauge    when the first client certificate expires
//	runtime_watcher_fleet_resyncs_total{manager,cause}                        counter  resyncs that the control plane asked for
//	runtime_watcher_fleet_resyncs_pending{manager}                            gauge    … and has not delivered yet
//	runtime_watcher_fleet_untracked_total{manager}                            counter  requests of runtimes beyond the fleet's bound
//
// And only on request ([FleetOptions].PerRuntime):
//
//	runtime_watcher_fleet_runtime_state{runtime,manager,state,reason}         gauge    1 for the state that a runtime is in
//	runtime_watcher_fleet_runtime_heard_timestamp_seconds{runtime,manager}    gauge    when it was last heard
//	runtime_watcher_fleet_runtime_oldest_event_pending_seconds{runtime,manager} gauge  age of its oldest event
//
// What waits and what expires is what runtimes say of themselves. Only the replica of an operator that leads hears them.
//
// # Labels
//
//	manager   the operator that events are for; "_other" for requests that name none and all beyond Options.MaxManagers
//	decision  what the agent decided on a write; "refused" if the request was no review
//	result    "ok", "partial" (some events of a batch failed, for an attempt as a whole), or why it failed
//	reason    why an event or a connection was dropped or a request refused, empty if it was not; "overflow" and "shutdown" are the outbox's own
//	state     freshness: "fresh", "stale", "degraded", "unknown"; reason then is why it is degraded. Of a canary: "alive", "lost" (the API server
//	          does not call the agent) or "failing" (it can not find out)
//	cause     why a runtime is looked at as a whole: "new_epoch", "gap", "went_back", "returned", "replica_lost"
//	problem   what is wrong with an owner, or with key material
//	server    "webhook" or "metrics"
//	place     where a panic was caught
//	contract  "v1", "v2", …; empty if a request names none
//	code      HTTP status; empty if there was no answer
//	use       what a certificate is for: "client", "server" or "ca"
//
// The name of a manager comes from a URL, so a stranger may invent some: only [Options].MaxManagers of them get series of their own, and Forget
// frees those of one. All other labels have few values, fixed in code, and are bounded all the same.
package prometheus
