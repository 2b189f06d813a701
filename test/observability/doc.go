// Package observability generates docs/reference/metrics.md, the alerts and the dashboards, and proves all of
// them against a real agent and a real operator.
package observability
