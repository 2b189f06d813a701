module github.com/runtime-watcher/runtime-watcher/examples

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/runtime-watcher/runtime-watcher/adapters/httpmtls v0.0.0
	github.com/runtime-watcher/runtime-watcher/core v0.0.0
	github.com/runtime-watcher/runtime-watcher/listener v0.0.0
	go.uber.org/goleak v1.3.0
)

require (
	github.com/fsnotify/fsnotify v1.10.1 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/hashicorp/go-retryablehttp v0.7.8 // indirect
	golang.org/x/sys v0.20.0 // indirect
	k8s.io/apimachinery v0.37.2 // indirect
)

replace github.com/runtime-watcher/runtime-watcher/core => ../core

replace github.com/runtime-watcher/runtime-watcher/listener => ../listener

replace github.com/runtime-watcher/runtime-watcher/adapters/httpmtls => ../adapters/httpmtls
