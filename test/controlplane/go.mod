module github.com/runtime-watcher/runtime-watcher/test/controlplane

go 1.26.0
