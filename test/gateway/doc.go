// Package gateway runs a real nginx as the gateway in front of listeners, for tests: an attack
// table, and rotation under load.
package gateway
