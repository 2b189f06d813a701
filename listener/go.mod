module github.com/runtime-watcher/runtime-watcher/listener

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/runtime-watcher/runtime-watcher/adapters/httpserver v0.0.0
	github.com/runtime-watcher/runtime-watcher/core v0.0.0
	go.uber.org/goleak v1.3.0
	k8s.io/apimachinery v0.37.2
)

replace (
	github.com/runtime-watcher/runtime-watcher/adapters/httpserver => ../adapters/httpserver
	github.com/runtime-watcher/runtime-watcher/core => ../core
)
