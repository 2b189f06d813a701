// contrib: the module has separate versions below v1, and each minor version may change its API.
module github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream

go 1.26.0

require (
	github.com/nats-io/nats.go v1.55.0
	go.uber.org/goleak v1.3.0
)

require (
	github.com/google/go-cmp v0.7.0
	github.com/runtime-watcher/runtime-watcher v0.0.0-20261129183126-e09a7b77689b
)

require (
	github.com/klauspost/compress v1.20.0 // indirect
	github.com/nats-io/nkeys v0.4.16 // indirect
	github.com/nats-io/nuid v1.0.1 // indirect
	golang.org/x/crypto v0.57.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	k8s.io/apimachinery v0.35.0 // indirect
)

replace github.com/runtime-watcher/runtime-watcher => ../..
