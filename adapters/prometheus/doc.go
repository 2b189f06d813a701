// Package prometheus exposes metrics of an agent, of a listener, of a consumer and of a fleet to
// Prometheus. [Agent], [Listener] and [Consumer] have hooks for the parts that they
// measure. An outbox and a fleet are read at each scrape. Nothing is global: the caller passes a
// [prom.Registerer], and serves it.
//
// The package has the name of the client library that it uses. Import that one as prom.
//
// # Metrics of an agent
//
//	runtime_watcher_agent_events_accepted_total{manager}                   counter   events offered to the outbox
//	runtime_watcher_agent_events_delivered_total{manager}                  counter   acknowledged events
//	runtime_watcher_agent_events_coalesced_total{manager}                  counter   events that another one stands for
//	runtime_watcher_agent_events_dropped_total{manager,reason}             counter   events given up
//	runtime_watcher_agent_events_pending{manager}                          gauge     events that wait
//	runtime_watcher_agent_oldest_event_pending_seconds{manager}            gauge     age of the oldest of them
//	runtime_watcher_agent_forward_events_total{manager,result}             counter   events in attempts to forward
//	runtime_watcher_agent_forward_duration_seconds{result}                 histogram one attempt to forward
//	runtime_watcher_agent_forward_last_success_timestamp_seconds{manager}  gauge     last acknowledged attempt
//	runtime_watcher_agent_forward_connections_total{result}                counter   attempts to connect
//	runtime_watcher_agent_forward_retries_total{code}                      counter   retries within an attempt
//	runtime_watcher_agent_contract_in_use{manager,contract}                gauge     1 for the contract in use
//	runtime_watcher_agent_contract_unknown_total{manager}                  counter   attempts with an unknown contract
//	runtime_watcher_agent_canary_duration_seconds{state}                   histogram one write of the canary
//	runtime_watcher_agent_canary_state{state}                              gauge     1 for the last state
//	runtime_watcher_agent_admission_reviews_total{manager,decision}        counter   reviews answered
//	runtime_watcher_agent_admission_last_review_timestamp_seconds{manager} gauge     last review
//	runtime_watcher_agent_admission_owner_problems_total{manager,problem}  counter   objects without a valid owner
//	runtime_watcher_agent_admission_refusals_total{code,reason}            counter   requests that were no review
//	runtime_watcher_agent_admission_panics_total{place}                    counter   panics that were caught
//	runtime_watcher_agent_admission_duration_seconds{decision}             histogram answering one request
//	runtime_watcher_agent_admission_in_flight                              gauge     requests in progress
//	runtime_watcher_agent_tls_handshake_failures_total{cause}              counter   failed TLS handshakes
//	runtime_watcher_agent_connections_dropped_total{server,reason}         counter   connections beyond the limit
//	runtime_watcher_agent_managers_file_broken                             gauge     1 while the file is not in use
//	runtime_watcher_agent_stalls_total                                     counter   pauses of 1 s or longer
//	runtime_watcher_agent_certificate_reloads_total{use}                   counter   new key material in use
//	runtime_watcher_agent_certificate_reload_failures_total{use,problem}   counter   new key material refused
//	runtime_watcher_agent_certificate_expiry_timestamp_seconds{use}        gauge     expiry of the certificate in use
//	runtime_watcher_agent_certificate_lifetime_seconds{use}                gauge     its validity in all
//
// At every scrape, for every manager and so for their sum:
//
//	accepted = delivered + coalesced + the sum of dropped over all reasons + pending
//
// # Metrics of a listener
//
//	runtime_watcher_listener_requests_total{contract,manager,code,reason}   counter   requests answered
//	runtime_watcher_listener_request_duration_seconds{contract,code}        histogram answering one request
//	runtime_watcher_listener_requests_in_flight                             gauge     requests in progress
//	runtime_watcher_listener_tls_handshake_failures_total{cause}            counter   failed TLS handshakes
//	runtime_watcher_listener_connections_dropped_total{reason}              counter   connections beyond the limit
//	runtime_watcher_listener_certificate_reloads_total{use}                 counter   new key material in use
//	runtime_watcher_listener_certificate_reload_failures_total{use,problem} counter   new key material refused
//	runtime_watcher_listener_certificate_expiry_timestamp_seconds{use}      gauge     expiry of the certificate in use
//	runtime_watcher_listener_certificate_lifetime_seconds{use}              gauge     its validity in all
//
// # Metrics of a consumer
//
//	runtime_watcher_consumer_messages_total{manager,fate,reason} counter   messages taken, at each delivery
//	runtime_watcher_consumer_message_duration_seconds{fate}      histogram handling one delivery
//
// # Metrics of a fleet
//
//	runtime_watcher_fleet_runtimes{manager,state,reason}                      gauge     runtimes in each state
//	runtime_watcher_fleet_events_pending{manager}                             gauge     events that wait in runtimes
//	runtime_watcher_fleet_oldest_event_pending_seconds{manager}               gauge     age of the oldest of them
//	runtime_watcher_fleet_first_certificate_expiry_timestamp_seconds{manager} gauge     first of all expiries
//	runtime_watcher_fleet_resyncs_total{manager,cause}                        counter   resyncs delivered
//	runtime_watcher_fleet_resyncs_pending{manager}                            gauge     resyncs not yet delivered
//	runtime_watcher_fleet_untracked_total{manager}                            counter   requests beyond the limit
//
// And with [Options].PerRuntime:
//
//	runtime_watcher_fleet_runtime_state{runtime,manager,state,reason}           gauge     1 for the state of a runtime
//	runtime_watcher_fleet_runtime_heard_timestamp_seconds{runtime,manager}      gauge     time of its last request
//	runtime_watcher_fleet_runtime_oldest_event_pending_seconds{runtime,manager} gauge     age of its oldest event
//
// Pending events and their age are as the runtimes reported them. The expiry is that of verified
// certificates. Only the replica of an operator that leads receives these reports.
//
// # Installation
//
// With [RegisterInstallations], for an operator that installs agents:
//
//	runtime_watcher_installation_runtimes{state,reason}                gauge     runtimes by state
//	runtime_watcher_installation_never_heard_runtimes{manager}         gauge     ready agents without any heartbeat
//	runtime_watcher_installation_ca_phase{phase}                       gauge     1 for the phase of the CA's rotation
//	runtime_watcher_installation_ca_waiting_runtimes                   gauge     runtimes that delay a rotation
//	runtime_watcher_installation_certificates_overdue_runtimes         gauge     runtimes with a late certificate
//	runtime_watcher_installation_repairs_total                         counter   looks that applied all objects
//
// And with [Options].PerRuntime:
//
//	runtime_watcher_installation_runtime_problem{runtime,problem}      gauge     1 for a runtime with that problem
//
// # Labels
//
//	manager   operator that events are for; "_other" for no known one and for all beyond the limit
//	decision  verdict on a write; "refused" for a request that was no review
//	result    "ok", "partial" (some events of a batch failed), or the reason of a failure
//	fate      of a message: "enqueued", "handed_back" to the runtime, "delayed" or "terminated"
//	reason    why an event or a connection was dropped, a request or message refused, or a runtime
//	          is degraded
//	state     freshness: "fresh", "unproved", "stale", "degraded" or "unknown";
//	          of a canary: "alive", "lost" (the API server does not call the agent) or "failing"
//	cause     why a handshake failed, or why a runtime needs a resync
//	          of an installation: "Ready", "Progressing", "Failed" or "Removed"
//	phase     state of a rotation of the CA: "Stable", "Confirming", …
//	problem   fault of an owner, of key material or of an installation
//	server    "webhook" or "metrics"
//	place     where a panic was caught
//	contract  "v1", "v2", …; empty if a request names none
//	code      HTTP status; empty without an answer
//	use       purpose of a certificate: "client", "server", "ca" or "webhook_ca"
//
// A stranger can invent names of managers, as they come from a URL. So only [Options].MaxManagers
// of them get series of their own. All other labels have few values, which are constants in code,
// and are bounded as well.
package prometheus
