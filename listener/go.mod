module github.com/runtime-watcher/runtime-watcher/listener

go 1.26.0

require github.com/runtime-watcher/runtime-watcher/core v0.0.0

require k8s.io/apimachinery v0.37.2 // indirect

replace github.com/runtime-watcher/runtime-watcher/core => ../core
