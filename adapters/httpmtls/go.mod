module github.com/runtime-watcher/runtime-watcher/adapters/httpmtls

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/hashicorp/go-retryablehttp v0.7.8
	go.uber.org/goleak v1.3.0
	k8s.io/apimachinery v0.35.0
)

require github.com/runtime-watcher/runtime-watcher v0.0.0-20261129183126-e09a7b77689b

require github.com/hashicorp/go-cleanhttp v0.5.2 // indirect

replace github.com/runtime-watcher/runtime-watcher => ../..
