// Package agent composes an agent: a change source, an outbox and a transport. With them
// come heartbeats, metrics, health, key material, a canary and a watch for missed changes. [New]
// builds all parts, and [Agent.Start] runs them.
//
// The default source is a webhook for admission reviews, the default transport is HTTPS with client
// certificates. [Parts] replaces them.
package agent
