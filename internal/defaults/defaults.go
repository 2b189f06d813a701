// Package defaults contains values that several modules share: defaults of the agent that its
// program also documents, and the price of a message.
package defaults

import "time"

const (
	// MaxConnections bounds the connections of the webhook. It is enough for several API servers,
	// each with one connection per waiting write and 25 idle connections. A connection takes up to
	// 100 KiB under attack, and all connections must fit into the memory limit of the manifest.
	MaxConnections = 192
	// RetryNewest is the time between two attempts with the newest contract while an older contract
	// is in use.
	RetryNewest = 5 * time.Minute
	// CanaryInterval is the time between two writes of the canary.
	CanaryInterval = 30 * time.Second
	// MaxManagers bounds the managers that an agent knows.
	MaxManagers = 100
	// BytesPerToken is the number of bytes of a message that cost one token of the share of its
	// runtime. Each event costs one additional token.
	BytesPerToken = 16 << 10
)
