// Package polling compares an operator that gets events with operators that poll, side by side. See
// docs/maintainers/measurements.md.
package polling
