module github.com/runtime-watcher/runtime-watcher/tools

go 1.26.0

require golang.org/x/mod v0.42.0

replace (
	github.com/runtime-watcher/runtime-watcher => ..
	github.com/runtime-watcher/runtime-watcher/adapters/admission => ../adapters/admission
	github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime => ../adapters/controllerruntime
	github.com/runtime-watcher/runtime-watcher/adapters/httpmtls => ../adapters/httpmtls
	github.com/runtime-watcher/runtime-watcher/adapters/informer => ../adapters/informer
	github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream => ../adapters/natsjetstream
	github.com/runtime-watcher/runtime-watcher/adapters/opentelemetry => ../adapters/opentelemetry
	github.com/runtime-watcher/runtime-watcher/adapters/prometheus => ../adapters/prometheus
	github.com/runtime-watcher/runtime-watcher/agent => ../agent
	github.com/runtime-watcher/runtime-watcher/cmd/agent => ../cmd/agent
	github.com/runtime-watcher/runtime-watcher/controlplane => ../controlplane
	github.com/runtime-watcher/runtime-watcher/test => ../test
)

require (
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/google/go-containerregistry v0.22.1
	github.com/klauspost/compress v1.19.2 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
	golang.org/x/sync v0.22.0 // indirect
)
