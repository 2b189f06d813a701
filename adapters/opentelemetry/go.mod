// contrib: the module has separate versions below v1, and each minor version may change its API.
module github.com/runtime-watcher/runtime-watcher/adapters/opentelemetry

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	go.opentelemetry.io/otel v1.41.0
	go.opentelemetry.io/otel/sdk v1.41.0
	go.opentelemetry.io/otel/trace v1.41.0
)

require github.com/runtime-watcher/runtime-watcher v0.0.0-20261129183126-e09a7b77689b

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/google/uuid v1.6.0 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/otel/metric v1.41.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	k8s.io/apimachinery v0.35.0 // indirect
)

replace github.com/runtime-watcher/runtime-watcher => ../..
