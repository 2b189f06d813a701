// Package observability generates docs/reference/metrics.md and a resource of the alerts. It checks
// them and the dashboards against a real agent and a real operator.
package observability
