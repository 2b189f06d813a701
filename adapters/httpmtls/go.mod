module github.com/runtime-watcher/runtime-watcher/adapters/httpmtls

go 1.26.0
