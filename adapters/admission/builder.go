package admission

import "github.com/runtime-watcher/runtime-watcher/core/watch"

// builder makes the webhooks of one configuration.
type builder struct {
	endpoint Endpoint
	opts     ConfigurationOptions
}

// registration is one watch of a configuration.
type registration struct {
	*watch.Watch
	*builder
}
