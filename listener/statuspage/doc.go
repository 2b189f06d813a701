// Package statuspage serves the state of a fleet to people and programs: [FleetHandler] has a page
// for browsers and JSON, [InstallationsHandler] the agents that an operator installs. Both answer
// 403 unless [RequireToken] or [Authenticated] is in front of them.
package statuspage
