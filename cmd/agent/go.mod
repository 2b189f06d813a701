module github.com/runtime-watcher/runtime-watcher/cmd/agent

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/nats-io/nats.go v1.55.0
	github.com/prometheus/client_golang v1.25.0
	go.uber.org/goleak v1.3.0
	golang.org/x/net v0.59.0
	k8s.io/api v0.37.2
	k8s.io/apimachinery v0.37.2
	k8s.io/client-go v0.37.2
	sigs.k8s.io/yaml v1.6.0
)

require (
	github.com/davecgh/go-spew v1.1.2-0.20180830191138-d8f796af33cc // indirect
	github.com/pmezard/go-difflib v1.0.1-0.20181226105442-5d4384ee4fb2 // indirect
	golang.org/x/oauth2 v0.37.0 // indirect
	golang.org/x/term v0.46.0 // indirect
	golang.org/x/time v0.15.0 // indirect
)

require (
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/fxamacker/cbor/v2 v2.9.1 // indirect
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/hashicorp/go-retryablehttp v0.7.8 // indirect
	github.com/json-iterator/go v1.1.12 // indirect
	github.com/klauspost/compress v1.20.1 // indirect
	github.com/modern-go/concurrent v0.0.0-20180306012644-bacd9c7ef1dd // indirect
	github.com/modern-go/reflect2 v1.0.3-0.20250322232337-35a7c28c31ee // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/nats-io/nkeys v0.4.16 // indirect
	github.com/nats-io/nuid v1.0.1 // indirect
	github.com/prometheus/client_model v0.6.3 // indirect
	github.com/prometheus/common v0.72.0 // indirect
	github.com/prometheus/procfs v0.22.0 // indirect
	github.com/x448/float16 v0.8.4 // indirect
	go.yaml.in/yaml/v2 v2.4.4 // indirect
	golang.org/x/crypto v0.57.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	gopkg.in/inf.v0 v0.9.1 // indirect
	k8s.io/klog/v2 v2.140.0 // indirect
	k8s.io/kube-openapi v0.0.0-20260721132016-d427ff9ee9ad // indirect
	k8s.io/utils v0.0.0-20260626114624-be93311217bd // indirect
	sigs.k8s.io/json v0.0.0-20250730193827-2d320260d730 // indirect
	sigs.k8s.io/randfill v1.0.0 // indirect
	sigs.k8s.io/structured-merge-diff/v6 v6.4.2 // indirect
)

require (
	github.com/runtime-watcher/runtime-watcher v0.0.0-20261129183126-e09a7b77689b
	github.com/runtime-watcher/runtime-watcher/adapters/admission v0.0.0-20261129183126-e09a7b77689b
	github.com/runtime-watcher/runtime-watcher/adapters/httpmtls v0.0.0-20261129183126-e09a7b77689b
	github.com/runtime-watcher/runtime-watcher/adapters/informer v0.0.0-20261129183126-e09a7b77689b
	github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream v0.0.0-20261129183126-e09a7b77689b
	github.com/runtime-watcher/runtime-watcher/adapters/prometheus v0.0.0-20261129183126-e09a7b77689b
	github.com/runtime-watcher/runtime-watcher/agent v0.0.0-20261129183126-e09a7b77689b
)

replace (
	github.com/runtime-watcher/runtime-watcher => ../..
	github.com/runtime-watcher/runtime-watcher/adapters/admission => ../../adapters/admission
	github.com/runtime-watcher/runtime-watcher/adapters/httpmtls => ../../adapters/httpmtls
	github.com/runtime-watcher/runtime-watcher/adapters/informer => ../../adapters/informer
	github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream => ../../adapters/natsjetstream
	github.com/runtime-watcher/runtime-watcher/adapters/prometheus => ../../adapters/prometheus
	github.com/runtime-watcher/runtime-watcher/agent => ../../agent
)
