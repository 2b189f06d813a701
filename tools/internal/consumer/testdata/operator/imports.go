package main

// The packages of all other released modules.
import (
	_ "github.com/runtime-watcher/runtime-watcher/adapters/admission/canary"
	_ "github.com/runtime-watcher/runtime-watcher/adapters/informer"
	_ "github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	_ "github.com/runtime-watcher/runtime-watcher/adapters/opentelemetry"
	_ "github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
	_ "github.com/runtime-watcher/runtime-watcher/agent"
	_ "github.com/runtime-watcher/runtime-watcher/controlplane/keysource"
	_ "github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
)
