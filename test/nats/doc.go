// Package nats tests adapters/natsjetstream against real NATS servers with TLS: attacks, failures
// of servers, and the costs beside HTTP.
package nats
