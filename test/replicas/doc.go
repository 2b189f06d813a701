// Package replicas measures the time from a write in a runtime until an operator with several
// replicas has enqueued it, behind a gateway that asks the replicas in turn. It also kills the
// replica that leads.
package replicas
