module github.com/runtime-watcher/runtime-watcher

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	go.uber.org/goleak v1.3.0
	go.uber.org/mock v0.6.0
	k8s.io/apimachinery v0.35.0
)
